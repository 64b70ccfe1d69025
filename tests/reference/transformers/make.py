# SPDX-License-Identifier: Apache-2.0
"""Writes the files beside this script: small GPT-2, BERT, Mixtral and Llama with random weights as Hugging Face's
transformers saves them, and the logits, losses and gradients that it computes with them.

    python make.py [FOLDER]        needs torch, transformers and safetensors

Made with the versions that the metadata of the *_logits files name.
"""

import pathlib
import shutil
import sys
import tempfile

import safetensors.torch
import torch
import transformers

FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
FOLDER = FOLDER if FOLDER.is_dir() else FOLDER.parent
VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}
VOCAB, TOKENS = 13, 7


def randomized(model):
    """Every parameter, biases and norms among them, so that each one matters to the logits."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            middle = 1.0 if value.ndim == 1 and name.endswith("weight") else 0.0
            value.copy_(middle + 0.3 * torch.randn(value.shape, generator=generator))
    return model.eval()


def save(name, model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        shutil.copy(pathlib.Path(folder) / "model.safetensors", FOLDER / f"{name}.safetensors")


def compute(name, model, words, labels, ids, **more):
    """Logits, loss and the gradient of the word embedding; `more` are planes behind the ids."""
    model.zero_grad()
    logits = model(input_ids=ids, **more).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    planes = torch.stack([ids, *more.values()], 1) if more else ids
    held = {"input_ids": planes, "labels": labels, "logits": logits, "loss": loss,
            "word_grad": words.grad}
    safetensors.torch.save_file({k: v.detach().clone().contiguous() for k, v in held.items()},
                                FOLDER / f"{name}.safetensors", metadata=VERSIONS)


generator = torch.Generator().manual_seed(2)
ids = torch.randint(VOCAB, (2, TOKENS), generator=generator)
gpt2 = randomized(transformers.GPT2LMHeadModel(transformers.GPT2Config(
    vocab_size=VOCAB, n_positions=TOKENS, n_embd=8, n_layer=2, n_head=2, bos_token_id=0,
    eos_token_id=0)))
save("gpt2", gpt2)
compute("gpt2_logits", gpt2, gpt2.transformer.wte.weight, ids.roll(-1, 1), ids)

bert = randomized(transformers.BertForMaskedLM(transformers.BertConfig(
    vocab_size=VOCAB, max_position_embeddings=TOKENS, hidden_size=8, num_hidden_layers=2,
    num_attention_heads=2, intermediate_size=20)))
words = bert.bert.embeddings.word_embeddings.weight
types = (torch.arange(TOKENS) > 3).long().repeat(2, 1)
seen = torch.tensor([[1] * TOKENS, [1] * 4 + [0] * (TOKENS - 4)])
asked = torch.where(torch.tensor([[0, 1, 0, 0, 1, 0, 1], [1, 0, 0, 1, 0, 0, 0]]) == 1, ids, -100)
save("bert", bert)
compute("bert_logits", bert, words, ids.roll(-1, 1), ids, token_type_ids=types)
compute("bert_masked_logits", bert, words, asked, ids, token_type_ids=types, attention_mask=seen)

mixtral = randomized(transformers.MixtralForCausalLM(transformers.MixtralConfig(
    vocab_size=VOCAB, max_position_embeddings=TOKENS, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2, rope_theta=100.0)))
save("mixtral", mixtral)
compute("mixtral_logits", mixtral, mixtral.model.embed_tokens.weight, ids.roll(-1, 1), ids)

for name, tied in (("llama", False), ("llama_tied", True)):
    llama = randomized(transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=TOKENS, hidden_size=8, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=12, rope_theta=100.0, tie_word_embeddings=tied)))
    save(name, llama)
    compute(f"{name}_logits", llama, llama.model.embed_tokens.weight, ids.roll(-1, 1), ids)

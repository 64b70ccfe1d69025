# SPDX-License-Identifier: Apache-2.0
# Lockstep on Debian 13, where the system is not Linux or shall stay as it is. In the checkout:
#
#     docker build -t lockstep .
#     docker run --rm -it --init lockstep                    trains the demo
#     docker run --rm -it --init lockstep lockstep run -n 4 build/examples/01_hello_all_reduce
#
# Nothing more is needed: memory that ranks share is memfd_create's, so --shm-size does not matter, and no call is used
# that the default seccomp profile forbids. README.md says what a job of several containers needs.
FROM debian:trixie-slim
WORKDIR /lockstep
COPY scripts/bootstrap scripts/bootstrap
RUN scripts/bootstrap && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --shell /bin/sh somebody && chown somebody /lockstep
COPY --chown=somebody . .
USER somebody
RUN make
ENV PATH=/lockstep/build:$PATH
CMD ["./demo"]

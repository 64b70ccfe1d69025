/* What a machine can do at most, measured: beside it a profile stands. */
#ifndef LS_BENCH_PEAK_H
#define LS_BENCH_PEAK_H

/* float32 operations a second (a multiply-add is two), of so many threads at once. */
double ls__bench_peak_flops(int threads);
/* Bytes a second, read and written, of copies larger than the caches. 0: there is no memory. */
double ls__bench_peak_copy(int threads);

#endif

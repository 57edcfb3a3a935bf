/* What the application prints about a run. */
#ifndef TOSAIC_REPORT_H
#define TOSAIC_REPORT_H

#include "ethosu.h"

/* Cycles of the CPU during a run. */
typedef struct profile {
    const tosaic_method *method;
    uint64_t step_begin;
    uint64_t delegates; /* in delegates, and so waiting for the NPU */
    uint64_t steps;     /* in kernels and delegates */
    uint64_t printing;  /* of the log, which is not part of the run */
    uint64_t total;
} profile;

/* Notes the begin and the end of a call: the runtime's observer, with a `profile`. */
void report_step(void *context, const tosaic_step *step, bool ended);

/* Prints what a method has in memory, before it runs. */
void report_method(const tosaic_method *method);

/* Prints times, the NPU's counters, memory, and the outputs. */
void report_run(const profile *times, const tosaic_ethosu *npu);
void report_memory(void);
void report_outputs(const tosaic_method *method);

/* Prints element `index` of an output, and what it must be: the end of a line. */
void report_difference(const tosaic_tensor *tensor, const uint8_t *expected, uint32_t index);

/* Prints a failure: what was tried, and the runtime's sentence for it. */
void report_failure(const char *what, tosaic_status status, const tosaic_failure *failure);

#endif

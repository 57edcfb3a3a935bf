/* The model of this build: a generated file defines all this. */
#ifndef TOSAIC_MODEL_H
#define TOSAIC_MODEL_H

#include "tosaic.h"

/* Inputs with the outputs they must give, all as bytes in memory. */
typedef struct model_sample {
    const uint8_t *const *inputs;
    const uint8_t *const *outputs;
} model_sample;

/* A .ptd file with data of the model, and what the runtime keeps of it. */
typedef struct model_data_file {
    const uint8_t *start;
    uint32_t size;
    tosaic_data opened;
} model_data_file;

extern const uint8_t tosaic_model[]; /* the .pte */
extern const uint32_t model_size;
extern const uint32_t model_method; /* the method to run */
extern model_data_file model_data[];
extern const uint32_t model_data_count;
extern const uint32_t model_max_values; /* the most values of an output that are printed */

/* Memory, exactly as large as the model needs. */
extern tosaic_pool model_method_pool;
extern tosaic_pool model_planned_pool;
extern tosaic_pool model_scratch_pool;
extern tosaic_pool model_fast_scratch_pool;
extern tosaic_pool model_interface_pool; /* inputs and outputs for which the program plans no memory */
extern const uint32_t model_planned_sizes[];
extern const uint32_t model_planned_count;

/* Samples, and how far an output of floats may be from the expected one: atol + rtol * |expected|. */
extern const model_sample model_samples[];
extern const uint32_t model_sample_count;
extern const float model_atol;
extern const float model_rtol;

/* Room for the cycles of each operator and delegate. */
extern uint64_t model_cycles[];
extern uint32_t model_calls[];
extern const uint32_t model_step_count;

#endif

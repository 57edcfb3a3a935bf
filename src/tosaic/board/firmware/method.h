/* What the files that load and run a method share. */
#ifndef TOSAIC_METHOD_H
#define TOSAIC_METHOD_H

#include "delegate.h"
#include "kernel.h"
#include "program.h"

/* One instruction of the program. */
typedef struct tosaic_instruction {
    uint32_t kind;    /* INSTRUCTION_ARGUMENTS_... of fields.h */
    uint32_t first;   /* the operator, delegate, condition, source, or value to free */
    uint32_t second;  /* the destination or target */
    flat_vector args; /* numbers of values, of a call */
} tosaic_instruction;

/* Notes a failure and returns its status. */
tosaic_status tosaic_fail(tosaic_method *method, tosaic_status status, uint32_t detail);

/* Notes which operator of the plan failed. */
void tosaic_note_operator(tosaic_method *method, flat *file, uint32_t index);

/* Takes memory from the method pool. */
tosaic_status tosaic_take_for(tosaic_method *method, uint32_t count, uint32_t width, void **memory);

/* Makes the values of a method: planned memory first, then every value. */
tosaic_status tosaic_load_values(tosaic_method *method, flat *file);

/* Reads and checks instruction `index` of a chain, and writes its arguments to `method->args` if that is there. */
tosaic_status tosaic_decode(tosaic_method *method, flat *file, flat_vector chain, uint32_t index,
                            tosaic_instruction *instruction);

/* Finds the kernel of an operator by name and overload; NULL if there is none. */
const tosaic_kernel *tosaic_find_kernel(const tosaic_setup *setup, tosaic_text name, tosaic_text overload);

/* Checks the arguments of a call against the signature of its kernel. `*bad` receives the first wrong argument. */
tosaic_status tosaic_check_call(const tosaic_kernel *kernel, const tosaic_call *call, uint32_t *bad);

/* The value with a number that the file has in a vector of 32-bit numbers; NULL if there is none. */
tosaic_value *tosaic_get_value(const tosaic_method *method, flat *file, flat_vector numbers, uint32_t index);

#endif

/* The parts of an opened .pte file. */
#ifndef TOSAIC_PROGRAM_H
#define TOSAIC_PROGRAM_H

#include "flat.h"
#include "tosaic.h"

/* A piece of the file: all of it is inside. */
typedef struct tosaic_piece {
    uint32_t at;
    uint32_t size;
} tosaic_piece;

/* A reader for the flatbuffer of a program. */
flat tosaic_read(const tosaic_program *program);

/* The table ExecutionPlan of a method. */
flat_table tosaic_get_plan(flat *file, const tosaic_program *program, uint32_t index);

tosaic_text tosaic_get_text(flat *file, flat_table table, uint32_t field);

/* The pieces that tables refer to by number. They note a failure in `file`. */
tosaic_piece tosaic_get_segment(flat *file, const tosaic_program *program, uint32_t index);
tosaic_piece tosaic_get_inline_blob(flat *file, const tosaic_program *program, uint32_t index);

/* Finds a piece by its name. False if the program has none of that name: it is in another file. */
bool tosaic_find_named_data(flat *file, const tosaic_program *program, tosaic_text key, tosaic_piece *piece);

/* The data of a tensor: from its start to the end of what it may use. `list` is the list of initial data for a tensor
 * that is written, negative for a constant. */
tosaic_piece tosaic_get_tensor_data(flat *file, const tosaic_program *program, uint32_t index, int64_t list);

bool tosaic_same_text(tosaic_text a, tosaic_text b);

#endif

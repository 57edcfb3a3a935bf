/* The parts of an opened .pte file, and of the .ptd files that were added to it. */
#ifndef TOSAIC_PROGRAM_H
#define TOSAIC_PROGRAM_H

#include "flat.h"
#include "tosaic.h"

/* A piece of the file: all of it is inside. */
typedef struct tosaic_piece {
    uint32_t at;
    uint32_t size;
} tosaic_piece;

/* Data in one of the files. */
typedef struct tosaic_bytes {
    const uint8_t *start;
    uint32_t size;
} tosaic_bytes;

/* A reader for the flatbuffer of a file. */
flat tosaic_read(const tosaic_file *opened);

/* What checking a file of `size` bytes may read: far more than a valid one needs. */
uint64_t tosaic_limit_reads(uint32_t size);

/* The table ExecutionPlan of a method. */
flat_table tosaic_get_plan(flat *file, const tosaic_program *program, uint32_t index);

tosaic_text tosaic_get_text(flat *file, flat_table table, uint32_t field);

/* The pieces that tables refer to by number. They note a failure in `file`. A segment is a row of the vector `rows`. */
tosaic_piece tosaic_get_segment(flat *file, const tosaic_file *opened, flat_vector rows, uint32_t index);
tosaic_piece tosaic_get_inline_blob(flat *file, const tosaic_program *program, uint32_t index);

/* The segments of a .pte file. */
flat_vector tosaic_get_segments(flat *file, const tosaic_program *program);

/* Finds the row of a key in a vector of tables NamedData; absent if there is none. */
flat_table tosaic_find_named_data(flat *file, flat_vector rows, tosaic_text key);

/* Finds data by its key, in the program or in a .ptd file that was added to it. False if none of them has it. */
bool tosaic_find_data(flat *file, const tosaic_program *program, tosaic_text key, tosaic_bytes *found);

/* The data of a tensor: from its start to the end of what it may use. `list` is the list of initial data for a tensor
 * that is written, negative for a constant. */
tosaic_piece tosaic_get_tensor_data(flat *file, const tosaic_program *program, uint32_t index, int64_t list);

bool tosaic_same_text(tosaic_text a, tosaic_text b);

#endif

/* Reads flatbuffers without trusting them.
 *
 * A reader notes the first access outside the buffer in `bad` and returns zeros from then on, so code can read several
 * fields and check once. Counts are bounded by the size of the buffer, so loops over a vector always end; what a reader
 * may read in all is bounded too, because tables may share a vector, and a few of them would keep the CPU busy for years.
 */
#ifndef TOSAIC_FLAT_H
#define TOSAIC_FLAT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct flat {
    const uint8_t *data;
    uint32_t size; /* less than 2 GB */
    bool bad;
    uint32_t bad_at; /* the first wrong offset */
    uint64_t left;   /* the bytes that may still be read */
} flat;

/* The offset of a table. 0 is an absent one: all its fields have their defaults. */
typedef uint32_t flat_table;

/* A vector whose elements are all inside the buffer. */
typedef struct flat_vector {
    uint32_t at; /* the offset of the first element */
    uint32_t count;
} flat_vector;

uint8_t flat_read_u8(flat *buffer, uint32_t at);
uint32_t flat_read_u32(flat *buffer, uint32_t at);
uint64_t flat_read_u64(flat *buffer, uint32_t at);

flat_table flat_get_root(flat *buffer);

/* Fields by number; 0, an absent table or an empty vector where the table leaves them out. */
uint8_t flat_get_u8(flat *buffer, flat_table table, uint32_t field);
uint32_t flat_get_u32(flat *buffer, flat_table table, uint32_t field);
uint64_t flat_get_u64(flat *buffer, flat_table table, uint32_t field);
flat_table flat_get_table(flat *buffer, flat_table table, uint32_t field);
flat_vector flat_get_vector(flat *buffer, flat_table table, uint32_t field, uint32_t width);

/* A table in a vector of tables; absent if `index` is outside. */
flat_table flat_get_item(flat *buffer, flat_vector vector, uint32_t index);

/* Notes that something at an offset is wrong. */
void flat_refuse(flat *buffer, uint32_t at);

#endif

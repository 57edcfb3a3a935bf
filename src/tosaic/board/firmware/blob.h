/* Reads the blob of an Ethos-U delegate: a sequence of named blocks. */
#ifndef TOSAIC_BLOB_H
#define TOSAIC_BLOB_H

#include "delegate.h"
#include "program.h"

/* Fills a delegate from the blob in `piece` of the file. TOSAIC_BAD_BLOB if the blob is damaged, and
 * TOSAIC_EXTERNAL_DATA if a part of it is not in the file; `*bad` is the offset in the blob. */
tosaic_status tosaic_read_blob(flat *file, const tosaic_program *program, tosaic_piece piece,
                               tosaic_delegate *delegate, uint32_t *bad);

/* Copies slot `index` of a list of slots, and computes the bytes of its tensor. */
tosaic_slot tosaic_get_slot(const uint8_t *slots, uint32_t index, uint32_t *bytes);

#endif

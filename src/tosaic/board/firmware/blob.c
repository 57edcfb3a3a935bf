#include "blob.h"

#include "bytes.h"
#include "memory.h"

enum {
    NAME_SIZE = 16,
    HEADER_SIZE = 32, /* name, size of the data, whether it is external, zeros */
    SIZE_AT = 16,
    EXTERNAL_AT = 20,
    COUNT_SIZE = 4,
    SCRATCH_REGION = 1
};

typedef enum block_name { FIRST, COMMANDS, WEIGHTS, SCRATCH_SIZE, INPUTS, OUTPUTS, LAST, BLOCK_NAMES } block_name;

typedef struct block {
    block_name name;
    const uint8_t *data;
    uint32_t size;
    bool is_external;
} block;

static uint32_t read_u32(const uint8_t *from) {
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static block_name find_name(const uint8_t *header) {
    static const char names[BLOCK_NAMES][NAME_SIZE] = {
        "vela_bin_stream", "cmd_data", "weight_data", "scratch_size", "inputs", "outputs", "vela_end_stream",
    };
    uint32_t i = 0;
    while (i < BLOCK_NAMES && memcmp(header, names[i], NAME_SIZE) != 0) {
        i++;
    }
    return (block_name)i;
}

/* Reads the block at `at` and moves `at` behind it. */
static bool read_block(const uint8_t *blob, uint32_t blob_size, uint32_t *at, block *found) {
    if (blob_size - *at < HEADER_SIZE) {
        return false;
    }
    const uint8_t *header = blob + *at;
    uint32_t room = blob_size - *at - HEADER_SIZE;
    uint32_t external = header[EXTERNAL_AT];
    *found = (block){find_name(header), header + HEADER_SIZE, read_u32(header + SIZE_AT), external == 1};
    uint32_t padded = (found->size + TOSAIC_ALIGNMENT - 1u) & ~(TOSAIC_ALIGNMENT - 1u);
    if (found->name == BLOCK_NAMES || external > 1 || found->size > room || padded > room) {
        return false;
    }
    *at += HEADER_SIZE + padded;
    return true;
}

/* The data of a block that may be outside the blob, under the key that the block holds. */
static tosaic_status resolve(flat *file, const tosaic_program *program, block *found) {
    if (!found->is_external) {
        return TOSAIC_OK;
    }
    tosaic_text key = {(const char *)found->data, found->size};
    tosaic_bytes data;
    if (!tosaic_find_data(file, program, key, &data)) {
        return TOSAIC_EXTERNAL_DATA;
    }
    found->data = data.start;
    found->size = data.size;
    return tosaic_is_aligned((uintptr_t)data.start) ? TOSAIC_OK : TOSAIC_BAD_BLOB;
}

/* Checks a list of inputs or outputs: a count, and that many slots inside the scratch memory. */
static bool read_slots(const block *found, uint32_t scratch_size, const uint8_t **slots, uint32_t *count) {
    if (found->size < COUNT_SIZE) {
        return false;
    }
    *count = read_u32(found->data);
    *slots = found->data + COUNT_SIZE;
    if (*count > found->size / sizeof(tosaic_slot) || found->size != COUNT_SIZE + *count * sizeof(tosaic_slot)) {
        return false;
    }
    for (uint32_t i = 0; i < *count; i++) {
        uint32_t bytes;
        tosaic_slot slot = tosaic_get_slot(*slots, i, &bytes);
        if (bytes == 0 || slot.region != SCRATCH_REGION || slot.offset < 0 || (uint32_t)slot.offset > scratch_size ||
            bytes > scratch_size - (uint32_t)slot.offset) {
            return false;
        }
    }
    return true;
}

tosaic_slot tosaic_get_slot(const uint8_t *slots, uint32_t index, uint32_t *bytes) {
    tosaic_slot slot;
    memcpy(&slot, slots + index * sizeof slot, sizeof slot);
    uint64_t total = slot.element_size > 0 ? (uint32_t)slot.element_size : 0;
    for (uint32_t i = 0; i < 6; i++) {
        total = slot.shape[i] > 0 ? total * (uint32_t)slot.shape[i] : 0;
        if (total > UINT32_MAX) {
            total = 0;
        }
    }
    *bytes = (uint32_t)total;
    return slot;
}

/* Finds the blocks of a blob: each name once, between the first and the last. `*bad` is the last one that was read. */
static bool read_blocks(const uint8_t *blob, uint32_t size, block *blocks, uint32_t *bad) {
    uint32_t seen = 0;
    uint32_t at = 0;
    *bad = 0;
    while ((seen >> LAST) == 0) {
        block found;
        *bad = at;
        bool is_first = at == 0;
        if (!read_block(blob, size, &at, &found) || (found.name == FIRST) != is_first ||
            (seen >> found.name & 1u) != 0 || (found.is_external && found.name != COMMANDS && found.name != WEIGHTS)) {
            return false;
        }
        seen |= 1u << found.name;
        blocks[found.name] = found;
    }
    return at == size && seen == (1u << BLOCK_NAMES) - 1u && blocks[SCRATCH_SIZE].size == sizeof(uint32_t);
}

tosaic_status tosaic_read_blob(flat *file, const tosaic_program *program, tosaic_piece piece,
                               tosaic_delegate *delegate, uint32_t *bad) {
    const uint8_t *blob = program->file.data + piece.at;
    block blocks[BLOCK_NAMES];
    if (!read_blocks(blob, piece.size, blocks, bad)) {
        return TOSAIC_BAD_BLOB;
    }
    tosaic_status status = resolve(file, program, &blocks[COMMANDS]);
    if (status == TOSAIC_OK) {
        status = resolve(file, program, &blocks[WEIGHTS]);
    }
    if (status != TOSAIC_OK) {
        return status;
    }
    *delegate = (tosaic_delegate){
        .blob = blob,
        .commands = blocks[COMMANDS].data,
        .commands_size = blocks[COMMANDS].size,
        .weights = blocks[WEIGHTS].data,
        .weights_size = blocks[WEIGHTS].size,
        .scratch_size = read_u32(blocks[SCRATCH_SIZE].data),
    };
    uint32_t scratch = delegate->scratch_size;
    bool fit = read_slots(&blocks[INPUTS], scratch, &delegate->inputs, &delegate->input_count) &&
               read_slots(&blocks[OUTPUTS], scratch, &delegate->outputs, &delegate->output_count);
    return fit ? TOSAIC_OK : TOSAIC_BAD_BLOB;
}

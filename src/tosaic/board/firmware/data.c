/* Opens .ptd files, and finds data by its key. */
#include "bytes.h"
#include "fields.h"
#include "memory.h"
#include "program.h"

enum {
    HEADER_AT = 8,
    HEADER_SIZE = 40, /* magic, length, the place of the tables and their size, the place of the data and its size */
    VERSION = 0
};

/* Reads the header: the tables end before the segments begin. */
static void read_header(flat *file, tosaic_file *opened) {
    uint32_t length = flat_read_u32(file, HEADER_AT + 4);
    uint64_t start = flat_read_u64(file, HEADER_AT + 8);
    uint64_t size = flat_read_u64(file, HEADER_AT + 16);
    uint64_t base = flat_read_u64(file, HEADER_AT + 24);
    uint64_t segment_bytes = flat_read_u64(file, HEADER_AT + 32);
    if (memcmp(opened->data + HEADER_AT, "FH01", 4) != 0 || length < HEADER_SIZE || start < HEADER_SIZE ||
        start > file->size || size > file->size - start) {
        flat_refuse(file, HEADER_AT);
        return;
    }
    uint64_t end = start + size;
    if (base == 0 && segment_bytes == 0) {
        base = end;
    }
    if (base < end || base > file->size || segment_bytes > file->size - base) {
        flat_refuse(file, HEADER_AT);
        return;
    }
    opened->size = (uint32_t)end;
    opened->segments_base = (uint32_t)base;
    opened->segments_end = (uint32_t)(base + segment_bytes);
}

static flat_vector get_segments(flat *file, const tosaic_file *opened) {
    return flat_get_vector(file, opened->root, FLAT_TENSOR_SEGMENTS, 4);
}

static flat_vector get_names(flat *file, const tosaic_file *opened) {
    return flat_get_vector(file, opened->root, FLAT_TENSOR_NAMED_DATA, 4);
}

static tosaic_piece get_piece(flat *file, const tosaic_file *opened, flat_vector segments, flat_table row) {
    return tosaic_get_segment(file, opened, segments, flat_get_u32(file, row, NAMED_DATA_SEGMENT_INDEX));
}

/* Checks that every key has aligned data, so that a search needs to check nothing. */
static tosaic_status check_names(flat *file, const tosaic_file *opened) {
    flat_vector rows = get_names(file, opened);
    flat_vector segments = get_segments(file, opened);
    for (uint32_t i = 0; i < rows.count && !file->bad; i++) {
        flat_table row = flat_get_item(file, rows, i);
        (void)tosaic_get_text(file, row, NAMED_DATA_KEY);
        if (!tosaic_is_aligned(get_piece(file, opened, segments, row).at)) {
            return TOSAIC_MISALIGNED;
        }
    }
    return file->bad ? TOSAIC_DAMAGED : TOSAIC_OK;
}

tosaic_status tosaic_add_data(tosaic_program *program, tosaic_data *self, const void *data, uint32_t size) {
    tosaic_file *opened = &self->file;
    *self = (tosaic_data){.file = {.data = data, .size = size}};
    if (data == NULL || size < HEADER_AT + HEADER_SIZE || size > INT32_MAX ||
        memcmp(opened->data + 4, "FT01", 4) != 0) {
        return TOSAIC_NOT_DATA;
    }
    if (!tosaic_is_aligned((uintptr_t)data)) {
        return TOSAIC_MISALIGNED;
    }
    flat file = tosaic_read(opened);
    file.left = tosaic_limit_reads(size);
    read_header(&file, opened);
    file.size = opened->size;
    opened->root = flat_get_root(&file);
    if (file.bad || flat_get_u32(&file, opened->root, FLAT_TENSOR_VERSION) != VERSION) {
        return TOSAIC_DAMAGED;
    }
    tosaic_status status = check_names(&file, opened);
    if (status == TOSAIC_OK) {
        self->next = program->added;
        program->added = self;
    }
    return status;
}

bool tosaic_find_data(flat *file, const tosaic_program *program, tosaic_text key, tosaic_bytes *found) {
    flat_vector rows = flat_get_vector(file, program->file.root, PROGRAM_NAMED_DATA, 4);
    flat_table row = tosaic_find_named_data(file, rows, key);
    if (row != 0) {
        uint32_t index = flat_get_u32(file, row, NAMED_DATA_SEGMENT_INDEX);
        tosaic_piece piece = tosaic_get_segment(file, &program->file, tosaic_get_segments(file, program), index);
        *found = (tosaic_bytes){program->file.data + piece.at, piece.size};
        return true;
    }
    for (const tosaic_data *other = program->added; other != NULL && !file->bad; other = other->next) {
        flat reader = tosaic_read(&other->file);
        reader.left = file->left; /* many delegates may search the same long list */
        row = tosaic_find_named_data(&reader, get_names(&reader, &other->file), key);
        if (row != 0) {
            tosaic_piece piece = get_piece(&reader, &other->file, get_segments(&reader, &other->file), row);
            *found = (tosaic_bytes){other->file.data + piece.at, piece.size};
            return !reader.bad;
        }
        file->left = reader.left;
    }
    return false;
}

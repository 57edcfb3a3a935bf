#include "program.h"

#include "bytes.h"
#include "fields.h"
#include "memory.h"

#define READS_PER_BYTE 64u
#define LEAST_READS 65536u

enum {
    HEADER_AT = 8,
    HEADER_SIZE = 24,             /* magic, length, program size, segment base */
    HEADER_SIZE_WITH_SEGMENTS = 32 /* and the size of all segments */
};

/* Reads the extended header, which a file without segments does not have. */
static void read_header(flat *file, tosaic_file *opened) {
    if (memcmp(opened->data + HEADER_AT, "eh00", 4) != 0) {
        return;
    }
    uint32_t length = flat_read_u32(file, HEADER_AT + 4);
    uint64_t program_size = flat_read_u64(file, HEADER_AT + 8);
    uint64_t base = flat_read_u64(file, HEADER_AT + 16);
    uint64_t segment_bytes = length < HEADER_SIZE_WITH_SEGMENTS ? 0 : flat_read_u64(file, HEADER_AT + 24);
    if (file->bad || length < HEADER_SIZE || program_size > file->size) {
        flat_refuse(file, HEADER_AT);
        return;
    }
    if (base != 0) {
        uint64_t room = base < program_size || base > file->size ? 0 : file->size - base;
        if (base < program_size || base > file->size || segment_bytes > room) {
            flat_refuse(file, HEADER_AT);
            return;
        }
        opened->segments_base = (uint32_t)base;
        opened->segments_end = (uint32_t)(base + (segment_bytes != 0 ? segment_bytes : room));
    }
    opened->size = (uint32_t)program_size;
}

tosaic_status tosaic_open(tosaic_program *program, const void *data, uint32_t size) {
    tosaic_file *opened = &program->file;
    *program = (tosaic_program){.file = {.data = data, .size = size}};
    if (data == NULL || size < HEADER_AT + 4 || size > INT32_MAX || memcmp(opened->data + 4, "ET12", 4) != 0) {
        return TOSAIC_NOT_A_PROGRAM;
    }
    if (!tosaic_is_aligned((uintptr_t)data)) {
        return TOSAIC_MISALIGNED;
    }
    flat file = tosaic_read(opened);
    read_header(&file, opened);
    file.size = opened->size;
    opened->root = flat_get_root(&file);
    return file.bad ? TOSAIC_DAMAGED : TOSAIC_OK;
}

flat tosaic_read(const tosaic_file *opened) {
    return (flat){.data = opened->data, .size = opened->size, .left = UINT64_MAX};
}

uint64_t tosaic_limit_reads(uint32_t size) { return READS_PER_BYTE * (uint64_t)size + LEAST_READS; }

uint32_t tosaic_count_methods(const tosaic_program *program) {
    flat file = tosaic_read(&program->file);
    return flat_get_vector(&file, program->file.root, PROGRAM_EXECUTION_PLAN, 4).count;
}

flat_table tosaic_get_plan(flat *file, const tosaic_program *program, uint32_t index) {
    return flat_get_item(file, flat_get_vector(file, program->file.root, PROGRAM_EXECUTION_PLAN, 4), index);
}

tosaic_text tosaic_get_method_name(const tosaic_program *program, uint32_t index) {
    flat file = tosaic_read(&program->file);
    return tosaic_get_text(&file, tosaic_get_plan(&file, program, index), EXECUTION_PLAN_NAME);
}

tosaic_text tosaic_get_text(flat *file, flat_table table, uint32_t field) {
    flat_vector text = flat_get_vector(file, table, field, 1);
    return (tosaic_text){(const char *)file->data + text.at, text.count};
}

bool tosaic_same_text(tosaic_text a, tosaic_text b) {
    return a.length == b.length && memcmp(a.start, b.start, a.length) == 0;
}

tosaic_piece tosaic_get_segment(flat *file, const tosaic_file *opened, flat_vector rows, uint32_t index) {
    flat_table row = flat_get_item(file, rows, index);
    uint64_t offset = flat_get_u64(file, row, DATA_SEGMENT_OFFSET);
    uint64_t size = flat_get_u64(file, row, DATA_SEGMENT_SIZE);
    uint32_t room = opened->segments_end - opened->segments_base;
    if (file->bad || row == 0 || offset > room || size > room - offset) {
        flat_refuse(file, row);
        return (tosaic_piece){0, 0};
    }
    return (tosaic_piece){opened->segments_base + (uint32_t)offset, (uint32_t)size};
}

flat_vector tosaic_get_segments(flat *file, const tosaic_program *program) {
    return flat_get_vector(file, program->file.root, PROGRAM_SEGMENTS, 4);
}

tosaic_piece tosaic_get_inline_blob(flat *file, const tosaic_program *program, uint32_t index) {
    flat_vector rows = flat_get_vector(file, program->file.root, PROGRAM_BACKEND_DELEGATE_DATA, 4);
    flat_table row = flat_get_item(file, rows, index);
    flat_vector data = flat_get_vector(file, row, BACKEND_DELEGATE_INLINE_DATA_DATA, 1);
    if (row == 0) {
        flat_refuse(file, program->file.root);
    }
    return (tosaic_piece){data.at, data.count};
}

flat_table tosaic_find_named_data(flat *file, flat_vector rows, tosaic_text key) {
    for (uint32_t i = 0; i < rows.count && !file->bad; i++) {
        flat_table row = flat_get_item(file, rows, i);
        if (tosaic_same_text(tosaic_get_text(file, row, NAMED_DATA_KEY), key)) {
            return row;
        }
    }
    return 0;
}

/* A part of a segment, from the offset with that index to the segment's end. */
static tosaic_piece get_part(flat *file, const tosaic_program *program, flat_table row, uint32_t index) {
    flat_vector offsets = flat_get_vector(file, row, SUBSEGMENT_OFFSETS_OFFSETS, 8);
    uint32_t number = flat_get_u32(file, row, SUBSEGMENT_OFFSETS_SEGMENT_INDEX);
    tosaic_piece segment = tosaic_get_segment(file, &program->file, tosaic_get_segments(file, program), number);
    uint64_t offset = index < offsets.count ? flat_read_u64(file, offsets.at + 8u * index) : UINT64_MAX;
    if (offset > segment.size) {
        flat_refuse(file, row);
        return (tosaic_piece){0, 0};
    }
    return (tosaic_piece){segment.at + (uint32_t)offset, segment.size - (uint32_t)offset};
}

tosaic_piece tosaic_get_tensor_data(flat *file, const tosaic_program *program, uint32_t index, int64_t list) {
    flat_vector buffers = flat_get_vector(file, program->file.root, PROGRAM_CONSTANT_BUFFER, 4);
    if (buffers.count != 0) {
        flat_table row = flat_get_item(file, buffers, index);
        flat_vector data = flat_get_vector(file, row, BUFFER_STORAGE, 1);
        return (tosaic_piece){data.at, data.count};
    }
    if (list < 0) {
        return get_part(file, program, flat_get_table(file, program->file.root, PROGRAM_CONSTANT_SEGMENT), index);
    }
    flat_vector lists = flat_get_vector(file, program->file.root, PROGRAM_MUTABLE_DATA_SEGMENTS, 4);
    uint32_t number = list < UINT32_MAX ? (uint32_t)list : UINT32_MAX;
    return get_part(file, program, flat_get_item(file, lists, number), index);
}

#include "flat.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "flatbuffers are little endian, and so must the CPU be"
#endif

void flat_refuse(flat *buffer, uint32_t at) {
    if (!buffer->bad) {
        buffer->bad = true;
        buffer->bad_at = at;
    }
}

/* Whether `size` bytes at `at` are inside the buffer, and may still be read. */
static bool has(flat *buffer, uint32_t at, uint64_t size) {
    if (!buffer->bad && at <= buffer->size && size <= buffer->size - at && size <= buffer->left) {
        buffer->left -= size;
        return true;
    }
    flat_refuse(buffer, at);
    return false;
}

/* A hostile file may place a number at any address, so numbers are copied, not cast. */
static void copy(flat *buffer, uint32_t at, uint8_t *to, uint32_t size) {
    if (has(buffer, at, size)) {
        for (uint32_t i = 0; i < size; i++) {
            to[i] = buffer->data[at + i];
        }
    }
}

uint8_t flat_read_u8(flat *buffer, uint32_t at) {
    uint8_t value = 0;
    copy(buffer, at, &value, sizeof value);
    return value;
}

static uint16_t read_u16(flat *buffer, uint32_t at) {
    uint16_t value = 0;
    copy(buffer, at, (uint8_t *)&value, sizeof value);
    return value;
}

uint32_t flat_read_u32(flat *buffer, uint32_t at) {
    uint32_t value = 0;
    copy(buffer, at, (uint8_t *)&value, sizeof value);
    return value;
}

uint64_t flat_read_u64(flat *buffer, uint32_t at) {
    uint64_t value = 0;
    copy(buffer, at, (uint8_t *)&value, sizeof value);
    return value;
}

/* What the offset at `at` refers to: offsets point forward. */
static uint32_t follow(flat *buffer, uint32_t at) {
    uint32_t distance = flat_read_u32(buffer, at);
    if (buffer->bad || distance == 0 || distance >= buffer->size - at) {
        flat_refuse(buffer, at);
        return 0;
    }
    return at + distance;
}

flat_table flat_get_root(flat *buffer) { return follow(buffer, 0); }

/* The offset of a field's content; 0 if the table leaves it out. */
static uint32_t find(flat *buffer, flat_table table, uint32_t field) {
    if (table == 0) {
        return 0;
    }
    /* The field list may be before or after its table: the distance is signed, and wraps around. */
    uint32_t list = table - flat_read_u32(buffer, table);
    uint32_t entry = 4u + 2u * field;
    if (entry + 2u > read_u16(buffer, list)) {
        return 0;
    }
    uint32_t distance = read_u16(buffer, list + entry);
    return buffer->bad || distance == 0 ? 0 : table + distance;
}

uint8_t flat_get_u8(flat *buffer, flat_table table, uint32_t field) {
    uint32_t at = find(buffer, table, field);
    return at == 0 ? 0 : flat_read_u8(buffer, at);
}

uint32_t flat_get_u32(flat *buffer, flat_table table, uint32_t field) {
    uint32_t at = find(buffer, table, field);
    return at == 0 ? 0 : flat_read_u32(buffer, at);
}

uint64_t flat_get_u64(flat *buffer, flat_table table, uint32_t field) {
    uint32_t at = find(buffer, table, field);
    return at == 0 ? 0 : flat_read_u64(buffer, at);
}

flat_table flat_get_table(flat *buffer, flat_table table, uint32_t field) {
    uint32_t at = find(buffer, table, field);
    return at == 0 ? 0 : follow(buffer, at);
}

flat_vector flat_get_vector(flat *buffer, flat_table table, uint32_t field, uint32_t width) {
    flat_vector none = {0, 0};
    uint32_t at = find(buffer, table, field);
    if (at == 0) {
        return none;
    }
    uint32_t start = follow(buffer, at);
    uint32_t count = flat_read_u32(buffer, start);
    if (!has(buffer, start, 4u + (uint64_t)count * width)) {
        return none;
    }
    return (flat_vector){start + 4u, count};
}

flat_table flat_get_item(flat *buffer, flat_vector vector, uint32_t index) {
    return index < vector.count ? follow(buffer, vector.at + 4u * index) : 0;
}

#include "host.h"

#include "board.h"
#include "bytes.h"
#include "cortex_m.h"

enum { SYS_OPEN = 0x01, SYS_CLOSE = 0x02, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_FLEN = 0x0C };
enum { SYS_GET_CMDLINE = 0x15, SYS_EXIT_EXTENDED = 0x20 };
enum { MODE_READ = 1, MODE_WRITE = 5, APPLICATION_EXIT = 0x20026, END_OF_LOG = 4, FAILED = -1, NAME_SIZE = 128 };

static int32_t call(uint32_t number, const void *block) {
    register uint32_t r0 __asm__("r0") = number;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return (int32_t)r0;
}

void host_connect(host *self) {
    uint32_t block[2] = {(uint32_t)(uintptr_t)self->line, HOST_LINE_SIZE - 1u};
    memset(self->line, 0, sizeof self->line);
    if (call(SYS_GET_CMDLINE, block) == FAILED) {
        self->line[0] = 0;
    }
}

/* Finds the word after the option `-letter` that occurs for the `index`-th time; returns its length. */
static uint32_t find_option(const host *self, char letter, uint32_t index, const char **word) {
    const char *at = self->line;
    while (*at != 0) {
        bool is_option = at[0] == '-' && at[1] == letter && at[2] == ' ' && (at == self->line || at[-1] == ' ');
        if (is_option && index-- == 0) {
            uint32_t length = 0;
            *word = at + 3;
            while ((*word)[length] != 0 && (*word)[length] != ' ') {
                length++;
            }
            return length;
        }
        at++;
    }
    return 0;
}

static int32_t open(const char *name, uint32_t length, uint32_t mode) {
    char terminated[NAME_SIZE];
    if (length >= NAME_SIZE) {
        return FAILED;
    }
    memcpy(terminated, name, length);
    terminated[length] = 0;
    uint32_t block[3] = {(uint32_t)(uintptr_t)terminated, mode, length};
    return call(SYS_OPEN, block);
}

static void close(int32_t handle) { (void)call(SYS_CLOSE, &handle); }

/* Reads or writes; both return the bytes that are left. */
static bool move(uint32_t number, int32_t handle, const void *memory, uint32_t size) {
    uint32_t block[3] = {(uint32_t)handle, (uint32_t)(uintptr_t)memory, size};
    return call(number, block) == 0;
}

bool host_has_input(const host *self, uint32_t index) {
    const char *name;
    return find_option(self, 'i', index, &name) != 0;
}

bool host_read_input(const host *self, uint32_t index, void *to, uint32_t size) {
    const char *name = self->line;
    uint32_t length = find_option(self, 'i', index, &name);
    int32_t handle = open(name, length, MODE_READ);
    if (handle == FAILED) {
        return false;
    }
    bool done = call(SYS_FLEN, &handle) == (int32_t)size && (size == 0 || move(SYS_READ, handle, to, size));
    close(handle);
    return done;
}

bool host_write_output(const host *self, uint32_t index, const void *from, uint32_t size) {
    const char *base = self->line;
    uint32_t length = find_option(self, 'o', 0, &base);
    char name[NAME_SIZE];
    if (length == 0) {
        return true;
    }
    if (length > NAME_SIZE - 16u || index > 999) {
        return false;
    }
    memcpy(name, base, length);
    name[length++] = '-';
    for (uint32_t unit = index > 99 ? 100 : index > 9 ? 10 : 1; unit != 0; unit /= 10) {
        name[length++] = (char)('0' + index / unit % 10u);
    }
    memcpy(name + length, ".bin", 4);
    int32_t handle = open(name, length + 4u, MODE_WRITE);
    if (handle == FAILED) {
        return false;
    }
    bool done = size == 0 || move(SYS_WRITE, handle, from, size);
    close(handle);
    return done;
}

void host_exit(int code) {
    uint32_t block[2] = {APPLICATION_EXIT, (uint32_t)code};
    board_put(END_OF_LOG);
    (void)call(SYS_EXIT_EXTENDED, block);
    for (;;) {
        cortex_sleep();
    }
}

/* The host behind a debugger or simulator (semihosting): files for inputs and outputs, and the end of the program.
 *
 * The host gives a command line, `firmware -i FILE ... -o NAME`. Without a host, all calls fail and nothing is lost.
 */
#ifndef TOSAIC_HOST_H
#define TOSAIC_HOST_H

#include <stdbool.h>
#include <stdint.h>

#define HOST_LINE_SIZE 512u

typedef struct host {
    char line[HOST_LINE_SIZE]; /* the command line; empty if there is no host */
} host;

void host_connect(host *self);

/* Reads the whole file of input `index` to `to`, `size` bytes. False if there is none, or it has another size. */
bool host_read_input(const host *self, uint32_t index, void *to, uint32_t size);

/* Whether the command line names a file for input `index`. */
bool host_has_input(const host *self, uint32_t index);

/* Writes output `index` to its file, if the command line asks for outputs. False if that fails. */
bool host_write_output(const host *self, uint32_t index, const void *from, uint32_t size);

/* Ends the program: prints the end of the log, and tells the host the exit code. */
__attribute__((noreturn)) void host_exit(int code);

#endif

/* Tosaic's bare-metal runtime: runs a .pte file in place, on a Cortex-M with an Ethos-U.
 *
 *     tosaic_program program;
 *     tosaic_method method;
 *     tosaic_open(&program, model, model_size);
 *     tosaic_load(&method, &program, 0, &setup);       // checks everything, takes memory from the pools
 *     tosaic_set_input(&method, 0, samples, sizeof samples);
 *     tosaic_run(&method);                             // as often as needed
 *     tosaic_tensor *result = tosaic_get_output(&method, 0)->as.tensor;
 *
 * The runtime has no heap, no libc, no global variables and no recursion. All memory is the caller's: the file, which
 * stays where it is and is never written, and the pools. The file is not trusted: a damaged one ends in a status, never
 * in an access outside the file and the pools.
 *
 * All sizes are in bytes and have 32 bits. Every function that can fail returns a status.
 */
#ifndef TOSAIC_H
#define TOSAIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Status ---------------------------------------------------------------------------------------------------- */

/* What a call returns. tosaic_describe() has a sentence for each; `tosaic_failure.detail` has the number it mentions. */
typedef enum tosaic_status {
    TOSAIC_OK = 0,

    /* The file. */
    TOSAIC_NOT_A_PROGRAM,     /* no .pte file: its identifier is missing */
    TOSAIC_NOT_DATA,          /* no .ptd file: its identifier is missing */
    TOSAIC_MISALIGNED,        /* the file, data in it or the caller's memory is not aligned; detail: where */
    TOSAIC_DAMAGED,           /* an offset or a length in the file is wrong; detail: the offset */
    TOSAIC_BAD_VALUE,         /* a value, or a number that refers to a value, is wrong; detail: the number */
    TOSAIC_BAD_TENSOR,        /* a tensor has a type, shape, place or data that is not possible; detail: the value */
    TOSAIC_BAD_INSTRUCTION,   /* an instruction is unknown or refers to something that is not there */
    TOSAIC_EXTERNAL_DATA,     /* a tensor or a delegate has its data in a file that is not there; detail: its number */
    TOSAIC_NO_METHOD,         /* the program has no such method */

    /* What the program needs and the setup does not have. */
    TOSAIC_METHOD_POOL,       /* the method pool is too small; detail: the size that was needed */
    TOSAIC_PLANNED_POOL,      /* the planned pool is too small; detail: the size that was needed */
    TOSAIC_SCRATCH_POOL,      /* the scratch pool is too small; detail: the size that was needed */
    TOSAIC_FAST_SCRATCH_POOL, /* the fast scratch pool is too small; detail: the size that was needed */
    TOSAIC_NO_KERNEL,         /* an operator has no kernel in this build; name and overload: the operator */
    TOSAIC_NO_BACKEND,        /* a delegate is for another backend, or there is no NPU; name: the backend */

    /* A run. */
    TOSAIC_BAD_INPUT,         /* an input or output does not exist or has another size; detail: the size it has */
    TOSAIC_NO_DATA,           /* a tensor is used that has no memory: the caller must set it; detail: the argument */
    TOSAIC_BAD_ARGUMENT,      /* an operator takes an argument of another kind; detail: the argument */
    TOSAIC_BAD_TYPE,          /* a kernel does not take tensors of this type */
    TOSAIC_BAD_SHAPE,         /* a kernel does not take or give tensors of this shape */
    TOSAIC_BAD_INDEX,         /* an index is outside the tensor that it is for */
    TOSAIC_TOO_LONG,          /* the program does not end within `step_limit` instructions */

    /* The delegate. */
    TOSAIC_BAD_BLOB,          /* the blob of a delegate is damaged; detail: the offset in the blob */
    TOSAIC_BAD_DELEGATE_IO,   /* a delegate takes or gives other tensors than the program has; detail: the argument */
    TOSAIC_BAD_COMMANDS,      /* the command stream's container is damaged; detail: the offset in it */

    /* The NPU. */
    TOSAIC_NPU_MISSING,       /* the ID register is not that of an Ethos-U; detail: its content */
    TOSAIC_NPU_OTHER,         /* the file is for another NPU; detail: the configuration that it needs */
    TOSAIC_NPU_RESET,         /* the NPU does not leave reset, or not in the needed state; detail: its status word */
    TOSAIC_NPU_TIMEOUT,       /* the NPU did not end in time; detail: its status word */
    TOSAIC_NPU_BUS_FAULT,     /* the NPU accessed memory that refused; detail: its status word */
    TOSAIC_NPU_PARSE_FAULT,   /* the NPU refused a command; detail: its status word */
    TOSAIC_NPU_WEIGHT_FAULT,  /* weights could not be decoded, or on U85 a branch failed; detail: its status word */
    TOSAIC_NPU_ECC_FAULT,     /* the NPU found a memory error; detail: its status word */
    TOSAIC_NPU_STOPPED,       /* the NPU stopped before the end of its commands; detail: its status word */

    TOSAIC_STATUS_COUNT
} tosaic_status;

/* A piece of text in the file: not terminated. */
typedef struct tosaic_text {
    const char *start;
    uint32_t length;
} tosaic_text;

/* Where the last failure of a method was. */
typedef struct tosaic_failure {
    uint32_t instruction; /* the instruction; UINT32_MAX before the first one */
    uint32_t detail;      /* a number; the status says which */
    tosaic_text name;     /* the operator or backend; empty if there is none */
    tosaic_text overload; /* of the operator: `out` of aten::add.out */
} tosaic_failure;

/* Returns the sentence for a status. */
const char *tosaic_describe(tosaic_status status);

/* ---- Values ---------------------------------------------------------------------------------------------------- */

/* Element types, with the numbers that a .pte file uses. */
typedef enum tosaic_dtype {
    TOSAIC_UINT8 = 0,
    TOSAIC_INT8 = 1,
    TOSAIC_INT16 = 2,
    TOSAIC_INT32 = 3,
    TOSAIC_INT64 = 4,
    TOSAIC_FLOAT16 = 5,
    TOSAIC_FLOAT32 = 6,
    TOSAIC_FLOAT64 = 7,
    TOSAIC_BOOL = 11,
    TOSAIC_BFLOAT16 = 15,
    TOSAIC_UINT16 = 27,
    TOSAIC_UINT32 = 28,
    TOSAIC_UINT64 = 29
} tosaic_dtype;

#define TOSAIC_MAX_RANK 16u

typedef enum tosaic_dynamism { TOSAIC_STATIC = 0, TOSAIC_BOUND = 1, TOSAIC_UNBOUND = 2 } tosaic_dynamism;

/* A tensor: dense, its dimensions in memory in the order that `dim_order` lists, from outer to inner. */
typedef struct tosaic_tensor {
    void *data;               /* NULL while it has no memory; aligned for its element type */
    int32_t *sizes;           /* `rank` sizes, none negative; change them with tosaic_resize() only */
    const uint8_t *dim_order; /* `rank` dimensions, a permutation */
    uint32_t bytes;           /* of the data: the product of the sizes times the size of an element */
    uint32_t capacity;        /* of the memory */
    uint8_t dtype;            /* tosaic_dtype */
    uint8_t rank;
    uint8_t dynamism;         /* tosaic_dynamism: whether the sizes may change */
    uint8_t access;           /* tosaic_access */
} tosaic_tensor;

/* Where a tensor's memory is. */
typedef enum tosaic_access {
    TOSAIC_CONSTANT = 0, /* in the file: never written */
    TOSAIC_PLANNED = 1,  /* in the planned pool */
    TOSAIC_CALLERS = 2,  /* given by the caller; NULL before */
    TOSAIC_VIEW = 3      /* the caller's, through another tensor: until the next run */
} tosaic_access;

typedef enum tosaic_kind {
    TOSAIC_NONE = 0,
    TOSAIC_INT,
    TOSAIC_BOOLEAN,
    TOSAIC_DOUBLE,
    TOSAIC_TENSOR,
    TOSAIC_STRING,
    TOSAIC_INT_LIST,
    TOSAIC_DOUBLE_LIST,
    TOSAIC_BOOL_LIST,
    TOSAIC_TENSOR_LIST,
    TOSAIC_OPTIONAL_TENSOR_LIST
} tosaic_kind;

typedef struct tosaic_value tosaic_value;

/* A list of values; each has the kind of the list, or is TOSAIC_NONE in a list of optional tensors. */
typedef struct tosaic_list {
    tosaic_value *const *items;
    uint32_t count;
} tosaic_list;

struct tosaic_value {
    uint32_t kind; /* tosaic_kind: which member of `as` is valid */
    union {
        int64_t integer; /* TOSAIC_INT */
        bool boolean;
        double number; /* TOSAIC_DOUBLE */
        tosaic_tensor *tensor;
        tosaic_text string;
        tosaic_list list; /* all lists */
    } as;
};

/* Returns the size of an element; 0 for a type that the runtime does not know. */
uint32_t tosaic_get_element_size(uint32_t dtype);

/* Gives a tensor new sizes. Refused with TOSAIC_BAD_SHAPE if it is static, or its memory too small. */
tosaic_status tosaic_resize(tosaic_tensor *tensor, uint32_t rank, const int32_t *sizes);

/* ---- Memory ---------------------------------------------------------------------------------------------------- */

/* All that is taken from a pool is a multiple of this, and so should be its size. */
#define TOSAIC_ALIGNMENT 16u

/* A block of memory that the caller owns and the runtime divides. `base` must be a multiple of TOSAIC_ALIGNMENT. */
typedef struct tosaic_pool {
    uint8_t *base;
    uint32_t size;
    uint32_t used;
    uint32_t peak; /* the most that was ever used, or asked for */
} tosaic_pool;

/* ---- The NPU --------------------------------------------------------------------------------------------------- */

/* One call of the NPU. All addresses are multiples of TOSAIC_ALIGNMENT. */
typedef struct tosaic_npu_job {
    const uint8_t *commands; /* the container of the command stream, beginning with COP1 */
    uint32_t commands_size;
    const uint8_t *weights; /* region 0 */
    uint32_t weights_size;
    uint8_t *scratch; /* region 1 */
    uint32_t scratch_size;
    uint8_t *fast_scratch; /* region 2; NULL if there is none */
    uint32_t fast_scratch_size;
} tosaic_npu_job;

/* An NPU: the driver in ethosu.h, or what a board has in its place. `detail` receives the number of a failure. */
typedef struct tosaic_npu {
    tosaic_status (*run)(void *context, const tosaic_npu_job *job, uint32_t *detail);
    void *context;
} tosaic_npu;

/* ---- Programs and methods -------------------------------------------------------------------------------------- */

/* An opened file. Its fields are the runtime's own. */
typedef struct tosaic_file {
    const uint8_t *data;
    uint32_t size;          /* of the flatbuffer, which is the file's first part */
    uint32_t segments_base; /* where segments begin in the file */
    uint32_t segments_end;
    uint32_t root; /* the offset of the first table */
} tosaic_file;

/* An opened .ptd file: data that a program looks up by its key. */
typedef struct tosaic_data {
    tosaic_file file;
    const struct tosaic_data *next; /* another one of the same program */
} tosaic_data;

/* An opened .pte file, and the .ptd files that were added to it. */
typedef struct tosaic_program {
    tosaic_file file;
    const tosaic_data *added;
} tosaic_program;

/* A kernel; see kernel.h. */
typedef struct tosaic_kernel tosaic_kernel;

/* What an observer is told before and after each call of a kernel or delegate. */
typedef struct tosaic_step {
    uint32_t instruction;
    bool is_delegate;
    uint32_t index;      /* of the operator or delegate */
    tosaic_text name;    /* the operator without its overload, or the backend */
    const uint8_t *blob; /* of a delegate */
} tosaic_step;

/* What a method is given. Pools may be shared by methods that do not run at the same time, but for `method` and
 * `planned`, which hold the state of one. */
typedef struct tosaic_setup {
    tosaic_pool *method;       /* values, tensors, lists: what tosaic_load() makes */
    tosaic_pool *planned;      /* the memory that the program plans for its tensors */
    tosaic_pool *scratch;      /* a delegate's scratch memory, during its call */
    tosaic_pool *fast_scratch; /* SRAM that only the NPU uses; size 0 if there is none */
    const tosaic_kernel *kernels;
    uint32_t kernel_count;
    const tosaic_npu *npu; /* NULL if there is none */
    uint32_t step_limit;   /* the most instructions of one run, 16 arguments counting as one more; 0 for a million */
    void (*observe)(void *context, const tosaic_step *step, bool ended); /* NULL if nobody does */
    void *observer;
} tosaic_setup;

struct tosaic_delegate;

/* A loaded method. Its fields are the runtime's own, but `failure` may be read. */
typedef struct tosaic_method {
    tosaic_failure failure;
    const tosaic_program *program;
    const tosaic_setup *setup;
    uint32_t plan; /* the offset of its table */
    tosaic_value *values;
    uint32_t value_count;
    const tosaic_kernel **kernels; /* by operator */
    uint32_t operator_count;
    struct tosaic_delegate *delegates;
    uint32_t delegate_count;
    tosaic_value **args; /* room for the longest argument list */
} tosaic_method;

/* Opens a .pte file of `size` bytes at `data`, a multiple of TOSAIC_ALIGNMENT, which must stay there. */
tosaic_status tosaic_open(tosaic_program *program, const void *data, uint32_t size);

/* Adds a .ptd file to an opened program, before its methods are loaded: the weights or commands of delegates that the
 * .pte itself does not have. As with tosaic_open(), `data` is a multiple of TOSAIC_ALIGNMENT and must stay there.
 * `file` must stay too, and is another one for each .ptd file. */
tosaic_status tosaic_add_data(tosaic_program *program, tosaic_data *file, const void *data, uint32_t size);

uint32_t tosaic_count_methods(const tosaic_program *program);

/* Returns the name of a method; empty if there is none. */
tosaic_text tosaic_get_method_name(const tosaic_program *program, uint32_t index);

/* Loads a method: checks it, takes its memory from the pools, finds its kernels. `program` and `setup` must stay. */
tosaic_status tosaic_load(tosaic_method *method, const tosaic_program *program, uint32_t index,
                          const tosaic_setup *setup);

uint32_t tosaic_count_inputs(const tosaic_method *method);
uint32_t tosaic_count_outputs(const tosaic_method *method);

/* Returns an input or output; NULL if there is none of that index. */
const tosaic_value *tosaic_get_input(const tosaic_method *method, uint32_t index);
const tosaic_value *tosaic_get_output(const tosaic_method *method, uint32_t index);

/* Sets the data of an input tensor: copied if the program plans memory for it, else used where it is. Data that is used
 * where it is must stay until the last run with it, and a program that changes its input in place writes to it. */
tosaic_status tosaic_set_input(tosaic_method *method, uint32_t index, const void *data, uint32_t size);

/* Gives memory to an output tensor for which the program plans none. It must stay until the last run with it. */
tosaic_status tosaic_set_output(tosaic_method *method, uint32_t index, void *data, uint32_t size);

/* Runs the method. After TOSAIC_OK every output tensor has data, which is valid until the next run, or until the caller
 * reuses memory that it gave. Tensors that keep state keep it for the next run, which may also follow a failed one. */
tosaic_status tosaic_run(tosaic_method *method);

#endif

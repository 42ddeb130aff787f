/* One launch of a kernel whose other arguments are known: what triton_launch.py has packed, an address and two numbers.

   No header of CUDA's is needed: the two structures are those of its driver, which keeps them as they are for programs that
   were compiled before. */

#include <stdint.h>
#include <string.h>

enum { MOST = 64, EARLY = 6 /* programmatic stream serialization */ };

typedef struct {
    int id;
    char gap[4];
    union {
        int allowed;
        int64_t room[8];
    } value;
} Attribute;

typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    Attribute *attributes;
    unsigned count;
} Config;

typedef int (*Driver)(const Config *, void *function, void **arguments, void **extra);

typedef struct { /* all that the launches of one plan have in common */
    Driver driver;
    void *function, *stream;
    int64_t programs, threads, shared, early;
    int64_t line, record, count; /* which arguments are the two numbers; the address is the first */
    uint64_t arguments[];        /* of 8 bytes each */
} Packed;

/* Returns the driver's answer: 0 for `launched`. */
int numscope_launch(const Packed *packed, uint32_t high, uint32_t low, uint32_t line, uint32_t record) {
    uint64_t values[MOST];
    void *arguments[MOST];
    Attribute early;
    Config config = {{0, 1, 1}, {0, 1, 1}, (unsigned)packed->shared, packed->stream, &early, packed->early != 0};
    config.grid[0] = (unsigned)packed->programs;
    config.block[0] = (unsigned)packed->threads;
    memset(&early, 0, sizeof early);
    early.id = EARLY;
    early.value.allowed = 1;
    memcpy(values, packed->arguments, (size_t)packed->count * 8);
    for (int64_t k = 0; k < packed->count; k++) arguments[k] = values + k;
    values[0] = (uint64_t)high << 32 | low;
    values[packed->line] = line;
    values[packed->record] = record;
    return packed->driver(&config, packed->function, arguments, 0);
}

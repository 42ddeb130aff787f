/* One launch of a kernel whose arguments are known but for an address: what triton_launch.py has packed.

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

typedef struct { /* how much of a stream's lines and of its ring of records is used */
    int64_t lines, records, most_lines, most_records;
    int64_t (*about)[3]; /* of each line: the row, the tensor's elements, the real ones */
} Used;

typedef struct { /* all that the launches of one plan have in common */
    Driver driver;
    void *function, *stream;
    Used *used;
    int64_t programs, threads, shared, early, elements, real;
    int64_t line, count;  /* which argument is the line's number, the record's comes next; the address is the first */
    uint64_t arguments[]; /* of 8 bytes each */
} Packed;

/* Launch what measures a content into the next line; returns 0 if it was, -1 if there is no room, or the driver's answer. */
int numscope_launch(const Packed *packed, int row, uint32_t high, uint32_t low) {
    uint64_t values[MOST];
    void *arguments[MOST];
    Attribute early;
    Config config = {{0, 1, 1}, {0, 1, 1}, (unsigned)packed->shared, packed->stream, &early, packed->early != 0};
    Used *used = packed->used;
    int64_t line = used->lines, record = used->records;
    if (line >= used->most_lines || record + packed->programs > used->most_records) return -1;
    config.grid[0] = (unsigned)packed->programs;
    config.block[0] = (unsigned)packed->threads;
    memset(&early, 0, sizeof early);
    early.id = EARLY;
    early.value.allowed = 1;
    memcpy(values, packed->arguments, (size_t)packed->count * 8);
    for (int64_t k = 0; k < packed->count; k++) arguments[k] = values + k;
    values[0] = (uint64_t)high << 32 | low;
    values[packed->line] = (uint64_t)line;
    values[packed->line + 1] = (uint64_t)record;
    int answer = packed->driver(&config, packed->function, arguments, 0);
    if (answer != 0) return answer;
    used->about[line][0] = row;
    used->about[line][1] = packed->elements;
    used->about[line][2] = packed->real;
    used->lines = line + 1;
    used->records = record + packed->programs;
    return 0;
}

/* The fingerprint of a content in memory, in one pass: what definition.py defines, with the constants of constants.py.

   Compiled where the machine has a compiler, when it is first needed (native.py). Plain loops that any compiler turns into
   vector instructions; sums are of float64, so that elements of 32 bits and less need no scaling. A block's elements are
   read three times, for hash, statistics and sketch, from the nearest cache. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum { BLOCK = 1024, SPAN = 16384, ROW = 64, ROWS = 1024, ROLLS = 64, BUCKETS = 61, SKETCH = 64, LANES = 16 };
enum { SEED_PLACES = 1, SEED_BLOCKS = 2, SEED_SPANS = 3, SEED_SIGNS = 1089, SEED_FLIPS = 5044, SEED_ROLLS = 6044 };
enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT64, INT64, INT32, INT16, INT8, UINT8 };
enum { DIMENSIONS = 8 };
enum { PART = 1 << 17 }; /* elements that one thread adds up at a time */

typedef struct {
    double buckets[(BUCKETS + 3) * LANES]; /* a row begins in any of 61 and takes 4; what is beyond wraps around */
    uint64_t index, word, hash;
    int64_t nan, positive, negative, zero;
    double low, high, sum, squares;
} State;

typedef struct {
    double sum, squares, low, high;
    int64_t zero;
} Block;

typedef struct { /* where rows.py has its columns */
    int64_t (*integers)[5];
    double (*floats)[4];
    uint64_t *hash;
    double (*sketch)[SKETCH];
} Rows;

typedef struct { /* all that contents of one form have in common */
    const Rows *rows;
    int64_t kind, size, elements; /* bytes of a real element; elements that the tensor says it has */
    int64_t dimensions, shape[DIMENSIONS], stride[DIMENSIONS]; /* of real elements; strides in bytes */
} Form;

static int32_t place_low[BLOCK]; /* a word's factor is low + 2**32 high: two products of 32 bits instead of one of 64 */
static uint32_t place_high[BLOCK];
static uint64_t block_factor[SPAN / BLOCK], sign_rows[ROWS];

static uint64_t splitmix(uint64_t seed, uint64_t index) {
    uint64_t z = (seed << 32) + (index + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Has each of the job's own threads do some work, and waits for them: GOMP_parallel, of the OpenMP that the job has loaded. */
typedef void (*Parallel)(void (*work)(void *), void *about, unsigned threads, unsigned flags);
static Parallel in_parallel;

/* Fill the tables: once, before anything else. `parallel`: null where there is no such function. */
void numscope_prepare(void *parallel) {
    in_parallel = (Parallel)parallel;
    for (int k = 0; k < BLOCK; k++) {
        uint64_t place = splitmix(SEED_PLACES, k) | 1;
        place_low[k] = (int32_t)place;
        place_high[k] = (uint32_t)((place - (uint64_t)(int64_t)place_low[k]) >> 32);
    }
    for (int k = 0; k < SPAN / BLOCK; k++) block_factor[k] = splitmix(SEED_BLOCKS, k) | 1;
    for (int k = 0; k < ROWS; k++) sign_rows[k] = splitmix(SEED_SIGNS, k);
}

/* Add words to the hash, all of one block of them. */
static void add_words(State *state, const int32_t *word, int count) {
    const int32_t *low = place_low + state->word % BLOCK;
    const uint32_t *high = place_high + state->word % BLOCK;
    uint64_t first = 0;
    uint32_t second = 0;
    for (int k = 0; k < count; k++) first += (uint64_t)((int64_t)word[k] * low[k]);
    for (int k = 0; k < count; k++) second += (uint32_t)word[k] * high[k];
    uint64_t span = state->word / SPAN, factor = block_factor[state->word / BLOCK % (SPAN / BLOCK)];
    if (span) factor *= splitmix(SEED_SPANS, span) | 1;
    state->hash += (first + ((uint64_t)second << 32)) * factor;
    state->word += count;
}

#define NAME(verb) verb##_single
#define REAL float
#define WORD uint32_t
#define BITS 32
#include "native_block.h"
#undef NAME
#undef REAL
#undef WORD
#undef BITS
#define NAME(verb) verb##_double
#define REAL double
#define WORD uint64_t
#define BITS 64
#include "native_block.h"

static float brain(uint16_t bits) {
    union { uint32_t bits; float number; } one = {(uint32_t)bits << 16};
    return one.number;
}

/* The exponents of half and float begin 112 apart: shifted bits times 2**112 are exact, subnormal ones too. */
static void load_half(const uint16_t *raw, float *to, int count) {
    uint32_t *bits = (uint32_t *)to;
    for (int k = 0; k < count; k++) bits[k] = (uint32_t)(raw[k] & 0x7fff) << 13;
    for (int k = 0; k < count; k++) to[k] *= 0x1p112f;
    for (int k = 0; k < count; k++) {
        uint32_t special = (raw[k] & 0x7c00) == 0x7c00 ? ((uint32_t)(raw[k] & 0x3ff) << 13) | 0x7f800000u : bits[k];
        bits[k] = special | (uint32_t)(raw[k] & 0x8000) << 16;
    }
}

#define FILL(INTO) for (int k = count; k % ROW; k++) INTO[k] = 0; /* up to a whole row */
#define CONVERT(TYPE, INTO, EXPRESSION)                                                                                \
    for (int k = 0; k < count; k++) {                                                                                  \
        TYPE one = ((const TYPE *)raw)[k];                                                                             \
        INTO[k] = EXPRESSION;                                                                                          \
    }                                                                                                                  \
    FILL(INTO)

/* Add at most BLOCK elements, of at most BLOCK words. */
static void add_block(State *state, int kind, const char *raw, int count, int size) {
    union { float single[BLOCK]; double wide[BLOCK]; } to;
    union { int32_t word[BLOCK]; double wide[BLOCK / 2]; } straight;
    int32_t words[BLOCK];
    int bytes = count * size;
    if ((uintptr_t)raw % (size == 8 ? 8 : 4)) { /* as a view's that begins at an odd element of two bytes */
        memcpy(&straight, raw, bytes);
        raw = (const char *)&straight;
    }
    if (bytes % 4) {
        words[bytes / 4] = 0;
        memcpy(words, raw, bytes);
        add_words(state, words, bytes / 4 + 1);
    } else {
        add_words(state, (const int32_t *)raw, bytes / 4);
    }
    switch (kind) {
    case FLOAT32:
        if (count % ROW == 0) {
            add_single(state, (const float *)raw, count);
            return;
        }
        CONVERT(float, to.single, one);
        break;
    case FLOAT16:
        load_half((const uint16_t *)raw, to.single, count);
        FILL(to.single);
        break;
    case BFLOAT16: CONVERT(uint16_t, to.single, brain(one)); break;
    case INT16: CONVERT(int16_t, to.single, one); break;
    case INT8: CONVERT(int8_t, to.single, one); break;
    case UINT8: CONVERT(uint8_t, to.single, one); break;
    case FLOAT64: CONVERT(double, to.wide, one); break;
    case INT64: CONVERT(int64_t, to.wide, (double)one); break;
    case INT32: CONVERT(int32_t, to.wide, one); break;
    }
    if (kind == FLOAT64 || kind == INT64 || kind == INT32)
        add_double(state, to.wide, count);
    else
        add_single(state, to.single, count);
}

/* What is on its way into the sums: less than a block of elements, of which the next ones are to follow. */
typedef struct {
    State *state;
    int kind, size, step, filled;
    int64_t room[BLOCK / 2];
} Feed;

#define GATHER(TYPE) for (int k = 0; k < count; k++) ((TYPE *)to)[k] = *(const TYPE *)(from + k * stride)

/* Take the next elements, `stride` bytes apart: in place where whole blocks lie in a row, or else through a copy. */
static void take(Feed *feed, const char *from, int64_t many, int64_t stride) {
    int size = feed->size;
    while (many) {
        int count = many < feed->step - feed->filled ? many : feed->step - feed->filled;
        char *to = (char *)feed->room + feed->filled * size;
        if (count == feed->step && stride == size) {
            add_block(feed->state, feed->kind, from, count, size);
        } else {
            if (stride == size) memcpy(to, from, (size_t)count * size);
            else if (size == 8) GATHER(uint64_t);
            else if (size == 4) GATHER(uint32_t);
            else if (size == 2) GATHER(uint16_t);
            else GATHER(uint8_t);
            feed->filled += count;
            if (feed->filled == feed->step) {
                add_block(feed->state, feed->kind, (char *)feed->room, feed->step, size);
                feed->filled = 0;
            }
        }
        from += count * stride;
        many -= count;
    }
}

/* Put LANES rows of a matrix that lies transposed next to each other: of each line of the cache all is read at once. */
#define STRAIGHTEN(TYPE)                                                                                               \
    for (int64_t k = 0; k < inner; k++)                                                                                \
        for (int r = 0; r < rows; r++) ((TYPE *)to)[r * pitch + k] = ((const TYPE *)(from + k * stride))[r]

static void take_transposed(Feed *feed, const char *from, int64_t outer, int64_t inner, int64_t stride, char *to) {
    int size = feed->size;
    int64_t pitch = inner + LANES; /* no multiple of a page, so that the rows have different places in the cache */
    for (int64_t first = 0; first < outer; first += LANES, from += LANES * size) {
        int rows = outer - first < LANES ? outer - first : LANES;
        if (size == 8) STRAIGHTEN(uint64_t);
        else if (size == 4) STRAIGHTEN(uint32_t);
        else if (size == 2) STRAIGHTEN(uint16_t);
        else STRAIGHTEN(uint8_t);
        for (int r = 0; r < rows; r++) take(feed, to + r * pitch * size, inner, size);
    }
}

static void begin(State *state, const Form *form, int64_t first) {
    memset(state, 0, sizeof *state);
    state->low = INFINITY;
    state->high = -INFINITY;
    state->index = first;
    state->word = first * form->size / 4;
}

/* Ask for the next block while this one is worked on: it is often a page of its own, which the processor does not foresee. */
static void fetch(const char *block, int bytes) {
    for (int line = 0; line < bytes; line += 64) __builtin_prefetch(block + line, 0, 2);
}

/* Add the elements from `first` on, up to `end`, of a content that lies in one piece. */
static void add_straight(State *state, const Form *form, const char *raw, int64_t first, int64_t end) {
    int size = form->size, step = size == 8 ? BLOCK / 2 : BLOCK;
    for (int64_t start = first; start < end; start += step) {
        const char *block = raw + start * size;
        if (end - start > 2 * step) fetch(block + step * size, step * size);
        add_block(state, form->kind, block, end - start < step ? end - start : step, size);
    }
}

/* The same of one whose rows lie apart, in row-major order. `straight`: room for some rows, where it lies transposed. */
static void add_spread(State *state, const Form *form, const char *raw, int64_t first, int64_t end, char *straight) {
    int last = form->dimensions - 1, outer = straight ? last - 2 : last - 1;
    int64_t inner = form->shape[last], stride = form->stride[last], at[DIMENSIONS], rest = first;
    Feed feed; /* not filled with zeros */
    feed.state = state, feed.kind = form->kind, feed.size = form->size, feed.filled = 0;
    feed.step = form->size == 8 ? BLOCK / 2 : BLOCK;
    for (int k = last; k >= 0; k--) {
        at[k] = rest % form->shape[k];
        rest /= form->shape[k];
        raw += at[k] * form->stride[k];
    }
    while (first < end) {
        if (straight) {
            take_transposed(&feed, raw, form->shape[last - 1], inner, stride, straight);
            first += form->shape[last - 1] * inner;
        } else {
            int64_t many = inner - at[last] < end - first ? inner - at[last] : end - first;
            take(&feed, raw, many, stride);
            first += many;
            raw -= at[last] * stride; /* the next row from its beginning */
            at[last] = 0;
        }
        for (int moved = outer; moved >= 0; moved--) {
            raw += form->stride[moved];
            if (++at[moved] < form->shape[moved]) break;
            raw -= form->shape[moved] * form->stride[moved];
            at[moved] = 0;
        }
    }
    if (feed.filled) add_block(state, feed.kind, (char *)feed.room, feed.filled, feed.size);
}

/* A content in parts: each has sums of its own, which are then added up in the order of the parts, so that it does not
   matter how many threads there are. What lies transposed is one part. */
typedef struct {
    const Form *form;
    const char *raw;
    int64_t elements, size, parts, next; /* of a part; how many there are, and which is to be added next */
    State *states;
} Shared;

static int is_transposed(const Form *form) {
    int last = form->dimensions - 1;
    return last > 0 && form->stride[last] > LANES * form->size && form->stride[last - 1] == form->size && form->shape[last] >= LANES;
}

static void add_part(State *state, const Shared *shared, int64_t part) {
    const Form *form = shared->form;
    int64_t first = part * shared->size, end = shared->elements - first > shared->size ? first + shared->size : shared->elements;
    begin(state, form, first);
    if (form->dimensions == 1 && form->stride[0] == form->size) {
        add_straight(state, form, shared->raw, first, end);
        return;
    }
    char *straight = NULL;
    if (is_transposed(form)) straight = malloc((form->shape[form->dimensions - 1] + LANES) * LANES * form->size);
    add_spread(state, form, shared->raw, first, end, straight);
    free(straight);
}

static void join(State *state, const State *part) {
    for (int k = 0; k < (BUCKETS + 3) * LANES; k++) state->buckets[k] += part->buckets[k];
    state->index = part->index;
    state->hash += part->hash;
    state->nan += part->nan;
    state->positive += part->positive;
    state->negative += part->negative;
    state->zero += part->zero;
    state->sum += part->sum;
    state->squares += part->squares;
    if (part->low < state->low) state->low = part->low;
    if (part->high > state->high) state->high = part->high;
}

#if defined(__SSE2__)
/* Subnormal numbers count, even where the job has them flushed to zero. */
#define EXACTLY unsigned before = _mm_getcsr(); _mm_setcsr(before & ~0x8040u)
#define AS_BEFORE _mm_setcsr(before)
#else
#define EXACTLY
#define AS_BEFORE
#endif

static void share(void *about) {
    Shared *shared = about;
    int64_t part;
    EXACTLY;
    while ((part = __atomic_fetch_add(&shared->next, 1, __ATOMIC_RELAXED)) < shared->parts)
        add_part(&shared->states[part], shared, part);
    AS_BEFORE;
}

static void add_all(State *state, const Form *form, const char *raw) {
    Shared shared = {form, raw, 1, PART, 0, 0, NULL};
    for (int k = 0; k < form->dimensions; k++) shared.elements *= form->shape[k];
    if (is_transposed(form)) shared.size = shared.elements;
    shared.parts = (shared.elements + shared.size - 1) / shared.size;
    if (shared.parts == 1) {
        add_part(state, &shared, 0);
        return;
    }
    State one;
    begin(state, form, 0);
    if (in_parallel) shared.states = malloc(shared.parts * sizeof *state);
    if (shared.states) in_parallel(share, &shared, 0, 0);
    for (int64_t part = 0; part < shared.parts; part++) {
        if (!shared.states) add_part(&one, &shared, part);
        join(state, shared.states ? &shared.states[part] : &one);
    }
    free(shared.states);
}

static void write_row(const State *state, const Form *form, int row) {
    int64_t *integers = form->rows->integers[row];
    double *floats = form->rows->floats[row], *sketch = form->rows->sketch[row];
    int64_t finite = state->index - state->nan - state->positive - state->negative;
    integers[0] = form->elements;
    integers[1] = state->nan;
    integers[2] = state->positive;
    integers[3] = state->negative;
    integers[4] = state->zero;
    floats[0] = finite ? state->low : NAN;
    floats[1] = finite ? state->high : NAN;
    floats[2] = finite ? state->sum / finite : NAN;
    floats[3] = sqrt(state->squares);
    form->rows->hash[row] = state->hash;
    memset(sketch, 0, SKETCH * sizeof *sketch);
    for (int start = 0; start < (BUCKETS + 3) * LANES; start += BUCKETS)
        for (int k = 0; k < BUCKETS && start + k < (BUCKETS + 3) * LANES; k++) sketch[k] += state->buckets[start + k];
}

/* Measure a content. 1 tells that its magnitudes need care that is not taken here: nothing is written then.
   The address comes in two halves: ctypes hands on numbers of 32 bits as they are, and makes an object for each larger one,
   which takes longer than a small content. */
int numscope_measure(const Form *form, int row, uint32_t high, uint32_t low) {
    State state;
    const char *raw = (const char *)((uint64_t)high << 32 | low);
    EXACTLY;
    add_all(&state, form, raw);
    double largest = state.high > -state.low ? state.high : -state.low;
    int careful = largest != 0 && largest > -INFINITY && !(largest > 0x1p-400 && largest < 0x1p400);
    if (!careful) write_row(&state, form, row);
    AS_BEFORE;
    return careful;
}

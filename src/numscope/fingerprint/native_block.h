/* One block of elements in one precision, REAL, whose bits are a WORD of BITS bits; included once for each. */

/* Add up a block of finite elements. Its squares are not finite where an element is not. */
static Block NAME(look)(const REAL *x, int count) {
    double sum = 0, squares = 0;
    REAL low = INFINITY, high = -INFINITY;
    int zero = 0;
#pragma omp simd reduction(+ : sum, squares, zero) reduction(min : low) reduction(max : high)
    for (int k = 0; k < count; k++) {
        REAL one = x[k];
        double wide = one;
        sum += wide;
        squares += wide * wide;
        zero += one == 0;
        low = one < low ? one : low;
        high = one > high ? one : high;
    }
    return (Block){sum, squares, low, high, zero};
}

/* Count what is not finite, and put 0 in its place. */
static Block NAME(leave_out)(State *state, const REAL *x, REAL *clean, int count) {
    REAL low = INFINITY, high = -INFINITY;
    int nan = 0, positive = 0, negative = 0, zero = 0;
#pragma omp simd reduction(+ : nan, positive, negative, zero) reduction(min : low) reduction(max : high)
    for (int k = 0; k < count; k++) {
        REAL one = x[k];
        int finite = one - one == 0;
        nan += one != one;
        positive += one == INFINITY;
        negative += one == -INFINITY;
        zero += one == 0;
        low = finite && one < low ? one : low;
        high = finite && one > high ? one : high;
        clean[k] = finite ? one : 0;
    }
    state->nan += nan;
    state->positive += positive;
    state->negative += negative;
    Block sums = NAME(look)(clean, count);
    return (Block){sums.sum, sums.squares, low, high, zero};
}

/* Add the elements to the sketch, with their signs: the buckets of 16 elements in a row repeat after 61 times 16. */
static void NAME(sketch)(State *state, const REAL *x, int count) {
    uint64_t row = state->index / ROW, chunk = row / ROWS;
    uint64_t flip = chunk ? splitmix(SEED_FLIPS, chunk) : 0, roll = chunk ? splitmix(SEED_ROLLS, chunk) % ROLLS : 0;
    for (int start = 0; start < count; start += ROW, row++) {
        uint64_t signs = sign_rows[(row + roll) % ROWS] ^ flip;
        double *bucket = state->buckets + row * (ROW / LANES) % BUCKETS * LANES;
        for (int part = 0; part < ROW; part += BITS) {
            WORD minus = (WORD)(signs >> part);
            for (int k = 0; k < BITS; k++) {
                union { REAL number; WORD bits; } one = {x[start + part + k]};
                one.bits ^= (minus << (BITS - 1 - k)) & ((WORD)1 << (BITS - 1));
                bucket[part + k] += one.number;
            }
        }
    }
}

/* Add a block of at most BLOCK elements, with zeros up to a whole row behind them. */
static void NAME(add)(State *state, const REAL *x, int count) {
    REAL clean[BLOCK];
    Block block = NAME(look)(x, count);
    if (!(block.squares < INFINITY)) {
        memset(clean, 0, sizeof clean);
        block = NAME(leave_out)(state, x, clean, count);
        x = clean;
    }
    state->sum += block.sum;
    state->squares += block.squares;
    state->zero += block.zero;
    if (block.low < state->low) state->low = block.low;
    if (block.high > state->high) state->high = block.high;
    NAME(sketch)(state, x, count);
    state->index += count;
}

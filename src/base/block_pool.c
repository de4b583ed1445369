#include "base/block_pool.h"

#include "base/memory.h"

#include <assert.h>

calla_status block_pool_init(block_pool *pool, int64_t n_blocks, calla_error *err)
{
    void *memory;
    *pool = (block_pool){0};
    if (n_blocks > INT32_MAX)
        return error_set(err, CALLA_ERR_MEMORY, "KV cache of %lld blocks, more than the %d allowed",
                         (long long)n_blocks, INT32_MAX);
    CALLA_TRY(mem_alloc((size_t)n_blocks * 2, sizeof(int32_t), "block pool", &memory, err));
    int32_t n = (int32_t)n_blocks;
    *pool = (block_pool){
        .n_blocks = n, .n_free = n, .free_blocks = memory, .references = (int32_t *)memory + n};
    for (int32_t i = 0; i < n; i++) pool->free_blocks[i] = n - 1 - i;
    return CALLA_OK;
}

void block_pool_deinit(block_pool *pool)
{
    mem_free(pool->free_blocks);
    *pool = (block_pool){0};
}

int32_t block_pool_take(block_pool *pool)
{
    if (pool->n_free == 0) return -1;
    int32_t block = pool->free_blocks[--pool->n_free];
    assert(pool->references[block] == 0);
    pool->references[block] = 1;
    return block;
}

void block_pool_retain(block_pool *pool, int32_t block)
{
    assert(block >= 0 && block < pool->n_blocks && pool->references[block] > 0);
    pool->references[block]++;
}

void block_pool_release(block_pool *pool, int32_t block)
{
    assert(block >= 0 && block < pool->n_blocks && pool->references[block] > 0);
    if (--pool->references[block] == 0) pool->free_blocks[pool->n_free++] = block;
}

calla_status block_list_grow(block_pool *pool, int32_t *blocks, int32_t have, int32_t more,
                             bool continue_last, int32_t *shared, calla_error *err)
{
    bool copy = continue_last && have > 0 && pool->references[blocks[have - 1]] > 1;
    if (pool->n_free < more + copy)
        return error_set(err, CALLA_ERR_MEMORY, "KV cache: %d of %d blocks are free, %d are needed",
                         pool->n_free, pool->n_blocks, more + copy);
    *shared = -1;
    if (copy) {
        *shared = blocks[have - 1];
        blocks[have - 1] = block_pool_take(pool);
        block_pool_release(pool, *shared);
    }
    for (int32_t i = 0; i < more; i++) blocks[have + i] = block_pool_take(pool);
    return CALLA_OK;
}

void block_list_release(block_pool *pool, const int32_t *blocks, int32_t begin, int32_t end)
{
    for (int32_t i = begin; i < end; i++) block_pool_release(pool, blocks[i]);
}

void block_list_share(block_pool *pool, int32_t *to, const int32_t *from, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        block_pool_retain(pool, from[i]);
        to[i] = from[i];
    }
}

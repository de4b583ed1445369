#include "base/block_pool.h"

#include "base/memory.h"

#include <assert.h>

calla_status block_pool_init(block_pool *pool, int32_t n_blocks, calla_error *err)
{
    *pool = (block_pool){.n_blocks = n_blocks, .n_free = n_blocks};
    void *memory;
    CALLA_TRY(mem_alloc((size_t)n_blocks * 2, sizeof(int32_t), "block pool", &memory, err));
    pool->free_blocks = memory;
    pool->references = pool->free_blocks + n_blocks;
    for (int32_t i = 0; i < n_blocks; i++) pool->free_blocks[i] = n_blocks - 1 - i;
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

/* The container: what is read, and every refusal with its message. */
#include "support/files.h"
#include "support/support.h"

#include "model/safetensors.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- headers in memory ---- */

typedef struct parsed {
    tensor *tensors;
    int32_t n;
    size_t capacity;
    calla_error err;
    unsigned char *file; /* of exactly its size, so that a sanitizer sees an overrun */
} parsed;

static calla_status parse(const char *header, size_t n_data, parsed *p)
{
    size_t n = strlen(header);
    *p = (parsed){.file = malloc(8 + n + n_data)};
    assert_non_null(p->file);
    for (int i = 0; i < 8; i++) p->file[i] = (unsigned char)(n >> (8 * i));
    memcpy(p->file + 8, header, n);
    memset(p->file + 8 + n, 0x5a, n_data);
    return safetensors_parse(p->file, 8 + n + n_data, "f.st", 3, &p->tensors, &p->n, &p->capacity,
                             &p->err);
}

static void parsed_free(parsed *p)
{
    tensors_free(p->tensors, p->n);
    free(p->file);
}

static void test_header(void **state)
{
    (void)state;
    parsed p;
    /* Any order, padding behind, every use of an offset. */
    const char *header =
        "{\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[16,40]},"
        "\"__metadata__\":{\"format\":\"mlx\"},"
        "\"empty\":{\"data_offsets\":[16,16],\"shape\":[0,5],\"dtype\":\"U32\"},"
        "\"a.\\u00e9\":{\"dtype\":\"BF16\",\"shape\":[8],\"data_offsets\":[0,16]},"
        "\"scalar\":{\"dtype\":\"F8_E4M3FNUZ\",\"shape\":[],\"data_offsets\":[40,41]},"
        "\"nibbles\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[41,44]}}   ";
    assert_ok(parse(header, 44, &p), &p.err);
    assert_int_equal(p.n, 5);
    const unsigned char *data = p.file + 8 + strlen(header);
    const tensor *b = &p.tensors[0], *a = &p.tensors[2];
    assert_string_equal(b->name, "b");
    assert_int_equal(b->dtype, DTYPE_F32);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->n_bytes, 24);
    assert_ptr_equal(b->data, data + 16);
    assert_int_equal(b->file, 3);
    assert_false(b->used);
    assert_string_equal(a->name, "a.\xc3\xa9");
    assert_int_equal(a->dtype, DTYPE_BF16);
    assert_ptr_equal(a->data, data);
    assert_int_equal(p.tensors[1].n_bytes, 0);
    assert_int_equal(p.tensors[3].dtype, DTYPE_OTHER);
    assert_string_equal(p.tensors[3].dtype_name, "F8_E4M3FNUZ");
    assert_int_equal(p.tensors[4].n_bytes, 3);
    parsed_free(&p);

    assert_ok(parse("{}", 0, &p), &p.err);
    assert_int_equal(p.n, 0);
    parsed_free(&p);
}

/* The data begin where the header ends, at whatever address (MLX does not pad). */
static void test_odd_data_start(void **state)
{
    (void)state;
    for (int pad = 0; pad < 8; pad++) {
        char header[128];
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}%.*s", pad,
                 "        ");
        parsed p;
        assert_ok(parse(header, 4, &p), &p.err);
        assert_ptr_equal(p.tensors[0].data, p.file + 8 + strlen(header));
        parsed_free(&p);
    }
}

#define ENTRY(name, dtype, shape, begin, end)                                                      \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end \
    "]}"

static void test_refused_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t n_data;
        const char *message;
    } cases[] = {
        {"", 8, "f.st: the header does not begin with '{'"},
        {" {}", 0, "does not begin with '{'"},
        {"[]", 0, "does not begin with '{'"},
        {"{\"a\":", 0, "f.st: header byte"},
        {"{}{}", 0, "end of file expected"},
        {"{\"\\u0000\":1}", 0, "f.st: header byte"},
        {"{\"a\":1}", 0, "tensor a is not described by an object"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object of strings"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ is not an object of strings"},
        {"{" ENTRY("a", "U8", "[1]", 0, 1) "," ENTRY("a", "U8", "[1]", 1, 2) "}", 2,
         "duplicate object key"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"extra\":0}}", 1,
         "tensor a: unknown key extra"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype is missing"},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype is missing or"},
        {"{" ENTRY("a", "Q4", "[1]", 0, 1) "}", 1, "dtype Q4 is not one of the format's"},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "shape is not a list"},
        {"{" ENTRY("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1,
         "shape is not a list of at most 8 sizes"},
        {"{" ENTRY("a", "U8", "[-1]", 0, 1) "}", 1, "shape[0] is not a whole number"},
        {"{" ENTRY("a", "U8", "[1.0]", 0, 1) "}", 1, "shape[0] is not a whole number"},
        {"{" ENTRY("a", "U8", "[99999999999999999999]", 0, 1) "}", 1, "too big integer"},
        {"{" ENTRY("a", "U8", "[4294967296,4294967296]", 0, 0) "}", 0,
         "shape [4294967296, 4294967296] of U8 is not a possible size"},
        {"{" ENTRY("a", "F32", "[576460752303423488]", 0, 0) "}", 0, "is not a possible size"},
        {"{" ENTRY("a", "F4", "[3]", 0, 1) "}", 1, "shape [3] of F4 is not a possible size"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "data_offsets is not a pair"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "is not a pair"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "is not a pair"},
        {"{" ENTRY("a", "U8", "[1]", -1, 0) "}", 1, "data_offsets is not a pair"},
        {"{" ENTRY("a", "U8", "[1]", 2, 1) "}", 2, "data_offsets [2, 1] leave the file's 2 data"},
        {"{" ENTRY("a", "U8", "[2]", 0, 2) "}", 1, "data_offsets [0, 2] leave the file's 1 data"},
        {"{" ENTRY("a", "U8", "[1]", 1, 9223372036854775807) "}", 1,
         "leave the file's 1 data bytes"},
        {"{" ENTRY("a", "U8", "[2]", 0, 1) "}", 1, "tensor a has 1 bytes, expected 2 for U8 [2]"},
        {"{" ENTRY("a", "BF16", "[2,2]", 0, 6) "}", 6,
         "tensor a has 6 bytes, expected 8 for BF16 [2, 2]"},
        {"{" ENTRY("a", "U8", "[1]", 0, 1) "," ENTRY("b", "BF16", "[1]", 1, 3) "}", 3,
         "tensor b: data offset 1 is not a multiple of BF16's 2 bytes"},
        {"{" ENTRY("a", "BF16", "[1]", 0, 2) "," ENTRY("b", "F32", "[1]", 2, 6) "}", 6,
         "tensor b: data offset 2 is not a multiple of F32's 4 bytes"},
        {"{" ENTRY("a", "U8", "[2]", 0, 2) "," ENTRY("b", "U8", "[2]", 1, 3) "}", 3,
         "tensor b begins at data byte 1, expected 2 (overlap)"},
        {"{" ENTRY("a", "U8", "[2]", 0, 2) "," ENTRY("b", "U8", "[2]", 0, 2) "}", 2, "(overlap)"},
        {"{" ENTRY("a", "U8", "[1]", 0, 1) "," ENTRY("b", "U8", "[1]", 2, 3) "}", 3,
         "tensor b begins at data byte 2, expected 1 (hole)"},
        {"{" ENTRY("a", "U8", "[1]", 1, 2) "}", 2, "tensor a begins at data byte 1, expected 0"},
        {"{" ENTRY("a", "U8", "[1]", 0, 1) "}", 5, "f.st: 5 data bytes, but the tensors end at 1"},
        {"{}", 1, "f.st: 1 data bytes, but the tensors end at 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        parsed p;
        calla_status status = parse(cases[i].header, cases[i].n_data, &p);
        assert_error(status, CALLA_ERR_INPUT, &p.err, cases[i].message);
        assert_memory_equal(p.err.message, "f.st", 4);
        parsed_free(&p);
    }
}

static void test_refused_lengths(void **state)
{
    (void)state;
    static const struct {
        unsigned char bytes[16];
        size_t n;
        const char *message;
    } cases[] = {
        {{0}, 0, "has 0 bytes, too few"},
        {{2, 0, 0, 0, 0, 0, 0}, 7, "has 7 bytes, too few"},
        {{0}, 8, "does not begin with '{'"},
        {{3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, 10, "header of 3 bytes in a file of 10 (truncated?)"},
        {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'},
         10,
         "header of 18446744073709551615 bytes, more than the 100000000"},
        {{1, 0xe1, 0xf5, 5, 0, 0, 0, 0, '{', '}'}, 10, "header of 100000001 bytes, more than"},
        {{0, 0xe1, 0xf5, 5, 0, 0, 0, 0, '{', '}'}, 10, "header of 100000000 bytes in a file of 10"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tensor *tensors = NULL;
        int32_t n = 0;
        size_t capacity = 0;
        calla_error err;
        unsigned char *exact = malloc(cases[i].n + !cases[i].n);
        assert_non_null(exact);
        memcpy(exact, cases[i].bytes, cases[i].n);
        assert_error(safetensors_parse(exact, cases[i].n, "f.st", 0, &tensors, &n, &capacity, &err),
                     CALLA_ERR_INPUT, &err, cases[i].message);
        assert_int_equal(n, 0);
        free(exact);
    }
}

/* Headers whose parse would take far more memory than they have bytes. */
static void test_hostile_headers(void **state)
{
    (void)state;
    size_t n = 3000000;
    char *header = malloc(n + 1);
    assert_non_null(header);
    memset(header, '[', n);
    memcpy(header, "{\"a\":", 5);
    header[n] = '\0';
    parsed p;
    assert_error(parse(header, 0, &p), CALLA_ERR_INPUT, &p.err, "has more than 1048576 values");
    parsed_free(&p);
    header[100000] = '\0';
    assert_error(parse(header, 0, &p), CALLA_ERR_INPUT, &p.err, "maximum parsing depth");
    parsed_free(&p);
    /* A name longer than any message. */
    memset(header, 'n', n);
    memcpy(header, "{\"", 2);
    strcpy(header + 4000, "\":1}");
    assert_error(parse(header, 0, &p), CALLA_ERR_INPUT, &p.err, "f.st: tensor nnnn");
    parsed_free(&p);
    free(header);
}

/* ---- directories ---- */

static void check_dir_refused(const char *dir, calla_status status, const char *message)
{
    calla_error err;
    tensor_set set;
    assert_error(tensor_set_open(dir, &set, &err), status, &err, message);
}

static const char *const shard_headers[2] = {
    "{" ENTRY("z", "BF16", "[2]", 0, 4) "," ENTRY("m", "F32", "[1]", 4, 8) "}",
    "{" ENTRY("b", "U32", "[1,2]", 0, 8) "}",
};

static void write_index(const char *dir, const char *text)
{
    write_test_file(dir, "model.safetensors.index.json", text, strlen(text));
}

static void write_shards(const char *dir)
{
    write_safetensors(dir, "one.safetensors", shard_headers[0], "\1\0\2\0\0\0\0\0", 8);
    write_safetensors(dir, "two.safetensors", shard_headers[1], NULL, 8);
}

static void test_single_file(void **state)
{
    (void)state;
    const char *dir = temporary_dir();
    write_safetensors(dir, "model.safetensors", shard_headers[0], "\1\0\2\0\0\0\0\0", 8);
    tensor_set set;
    calla_error err;
    assert_ok(tensor_set_open(dir, &set, &err), &err);
    assert_int_equal(set.n_files, 1);
    assert_int_equal(set.n_tensors, 2);
    assert_string_equal(set.tensors[0].name, "m");
    const tensor *z = tensor_set_find(&set, "z");
    assert_non_null(z);
    assert_memory_equal(z->data, "\1\0\2\0", 4);
    assert_null(tensor_set_find(&set, "zz"));
    assert_null(tensor_set_find(&set, ""));
    tensor_set_close(&set);
    assert_int_equal(set.n_files, 0);
}

static void test_shards(void **state)
{
    (void)state;
    const char *dir = temporary_dir();
    write_shards(dir);
    write_index(dir, "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"b\":\"two.safetensors\","
                     "\"m\":\"one.safetensors\",\"z\":\"one.safetensors\"}}");
    tensor_set set;
    calla_error err;
    assert_ok(tensor_set_open(dir, &set, &err), &err);
    assert_int_equal(set.n_files, 2);
    assert_int_equal(set.n_tensors, 3);
    assert_string_equal(set.tensors[0].name, "b");
    assert_string_equal(set.tensors[1].name, "m");
    assert_string_equal(set.tensors[2].name, "z");
    assert_string_equal(set.files[set.tensors[0].file].name, "two.safetensors");
    assert_string_equal(set.files[set.tensors[2].file].name, "one.safetensors");
    tensor_set_close(&set);
}

static void test_refused_index(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        calla_status status;
        const char *message;
    } cases[] = {
        {"", CALLA_ERR_INPUT, "index.json: line 1"},
        {"[]", CALLA_ERR_INPUT, "weight_map is not an object of file names"},
        {"{\"weight_map\":{}}", CALLA_ERR_INPUT, "weight_map is not an object"},
        {"{\"weight_map\":{\"b\":1}}", CALLA_ERR_INPUT, "tensor b: its file is not a plain file"},
        {"{\"weight_map\":{\"b\":\"../x\"}}", CALLA_ERR_INPUT, "not a plain file name (../x)"},
        {"{\"weight_map\":{\"b\":\"/etc/passwd\"}}", CALLA_ERR_INPUT, "(/etc/passwd)"},
        {"{\"weight_map\":{\"b\":\"..\"}}", CALLA_ERR_INPUT, "not a plain file name (..)"},
        {"{\"weight_map\":{\"b\":\"\"}}", CALLA_ERR_INPUT, "not a plain file name ()"},
        {"{\"weight_map\":{\"b\":\"three.safetensors\"}}", CALLA_ERR_IO,
         "three.safetensors: No such"},
        {"{\"weight_map\":{\"b\":\"two.safetensors\",\"c\":\"two.safetensors\"}}", CALLA_ERR_INPUT,
         "index.json: tensor c is not in two.safetensors"},
        {"{\"weight_map\":{\"m\":\"one.safetensors\"}}", CALLA_ERR_INPUT,
         "tensor z is in one.safetensors, the index says nothing"},
        {"{\"weight_map\":{\"m\":\"one.safetensors\",\"z\":\"two.safetensors\","
         "\"b\":\"two.safetensors\"}}",
         CALLA_ERR_INPUT, "tensor z is in one.safetensors, the index says two.safetensors"},
        {"{\"weight_map\":{\"b\":\"two.safetensors\",\"b\":\"one.safetensors\"}}", CALLA_ERR_INPUT,
         "duplicate object key"},
        {"{\"weight_map\":{\"b\":\"two.safetensors\",\"q\":\"copy.safetensors\"}}", CALLA_ERR_INPUT,
         "tensor b is in "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *dir = temporary_dir();
        write_shards(dir);
        write_safetensors(dir, "copy.safetensors", shard_headers[1], NULL, 8);
        write_index(dir, cases[i].index);
        check_dir_refused(dir, cases[i].status, cases[i].message);
    }
}

static void test_unreadable(void **state)
{
    (void)state;
    check_dir_refused("/nowhere", CALLA_ERR_IO, "cannot open /nowhere/model.safetensors");
    const char *dir = temporary_dir();
    char path[256];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(mkdir(path, 0777), 0);
    check_dir_refused(dir, CALLA_ERR_IO, "is not a regular file");
    dir = temporary_dir();
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(mkfifo(path, 0666), 0); /* must not wait for a writer */
    check_dir_refused(dir, CALLA_ERR_IO, "is not a regular file");
    dir = temporary_dir();
    write_test_file(dir, "model.safetensors", "", 0);
    check_dir_refused(dir, CALLA_ERR_INPUT, "has 0 bytes");
}

/* A real file cut at every interesting length. */
static void test_truncated_file(void **state)
{
    (void)state;
    size_t n;
    char *file = read_test_file(source_path("tests/data/oracle-a/mlx4/model.safetensors"), &n);
    size_t lengths[] = {1, 8, 9, 4000, 22823, 22824, 22825, 100000, n - 1};
    const char *dir = temporary_dir();
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        write_test_file(dir, "model.safetensors", file, lengths[i]);
        check_dir_refused(dir, CALLA_ERR_INPUT, "model.safetensors");
    }
    char *longer = realloc(file, n + 1);
    assert_non_null(longer);
    write_test_file(dir, "model.safetensors", longer, n + 1);
    check_dir_refused(dir, CALLA_ERR_INPUT, "data bytes, but the tensors end at");
    free(longer);
}

static void test_take(void **state)
{
    (void)state;
    const char *dir = temporary_dir();
    write_safetensors(dir, "model.safetensors", shard_headers[1], NULL, 8);
    tensor_set set;
    calla_error err;
    const tensor *t;
    assert_ok(tensor_set_open(dir, &set, &err), &err);
    assert_error(tensor_set_take(&set, "x", DTYPE_U32, 2, (int64_t[]){1, 2}, &t, &err),
                 CALLA_ERR_INPUT, &err, "tensor x is missing");
    assert_error(tensor_set_take(&set, "b", DTYPE_BF16, 2, (int64_t[]){1, 2}, &t, &err),
                 CALLA_ERR_INPUT, &err, "model.safetensors: tensor b has dtype U32, expected BF16");
    assert_error(tensor_set_take(&set, "b", DTYPE_U32, 2, (int64_t[]){2, 1}, &t, &err),
                 CALLA_ERR_INPUT, &err, "tensor b has shape [1, 2], expected [2, 1]");
    assert_error(tensor_set_take(&set, "b", DTYPE_U32, 1, (int64_t[]){2}, &t, &err),
                 CALLA_ERR_INPUT, &err, "tensor b has shape [1, 2], expected [2]");
    assert_false(set.tensors[0].used);
    assert_ok(tensor_set_take(&set, "b", DTYPE_U32, 2, (int64_t[]){1, 2}, &t, &err), &err);
    assert_true(t->used);
    assert_int_equal(t->n_bytes, 8);
    tensor_set_close(&set);
}

static void test_shape_text(void **state)
{
    (void)state;
    char text[32];
    assert_string_equal(shape_text(2, (int64_t[]){2048, 256}, text, sizeof text), "[2048, 256]");
    assert_string_equal(shape_text(0, NULL, text, sizeof text), "[]");
    assert_string_equal(shape_text(2, (int64_t[]){2048, 256}, text, 8), "[2048, ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header),
        cmocka_unit_test(test_odd_data_start),
        cmocka_unit_test(test_refused_headers),
        cmocka_unit_test(test_refused_lengths),
        cmocka_unit_test(test_hostile_headers),
        cmocka_unit_test(test_single_file),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_refused_index),
        cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_truncated_file),
        cmocka_unit_test(test_take),
        cmocka_unit_test(test_shape_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* How fast texts are scanned, beside how fast the machine reads them: plain prose, and texts made
 * to be slow. Build it, run it: build/tests/bench_detect [MEGABYTES]. */
#include "base/clock.h"
#include "base/philox.h"
#include "hybrid/detect/detect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t draw(uint64_t i)
{
    uint32_t r[4];
    philox4x32(11, i, 0, r);
    return r[0];
}

static const char prose[] =
    "The river rises in the hills west of the town and runs through a narrow valley before it "
    "reaches the plain. In 1987 a bridge was built there, 240 metres long, at a cost of 3.2 "
    "million. "
    "Release 2.4.1 of the model (commit 9f3c2ab) predicts its level from rain measured upstream, "
    "every 15 minutes; see section 3.1.2 of the manual. Der Fluss entspringt westlich der Stadt. "
    "La rivi\xc3\xa8re traverse une vall\xc3\xa9"
    "e \xc3\xa9troite avant d'atteindre la plaine.\n";

/* Each fills text [n]. */
static void fill_repeated(char *text, size_t n, const char *unit)
{
    size_t length = strlen(unit);
    for (size_t i = 0; i < n; i++) text[i] = unit[i % length];
}
static void fill_alphabet(char *text, size_t n, const char *alphabet)
{
    size_t length = strlen(alphabet);
    for (size_t i = 0; i < n; i++) text[i] = alphabet[draw(i) % length];
}

static const struct {
    const char *name;
    void (*fill)(char *text, size_t n, const char *of);
    const char *of;
} texts[] = {
    {"prose", fill_repeated, prose},
    {"one run of digits", fill_alphabet, "0123456789"},
    {"digits and spaces", fill_alphabet, "0123456789 "},
    {"digits one by one", fill_repeated, "4 1 1 1 "},
    {"groups of four", fill_repeated, "4111 1111 "},
    {"ids without end", fill_repeated, "123-45-6789-"},
    {"nothing but @", fill_repeated, "@"},
    {"a@a.a@", fill_repeated, "a@a.aa@"},
    {"base64 noise", fill_alphabet,
     "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"},
    {"base64 of text", fill_repeated,
     "bWFpbCBtZSBhdCBqb2VAZXhhbXBsZS5jb20gb3Iga2V5PTEyMzQ1Njc4YWJj "},
    {"names of passwords", fill_repeated, "password="},
    {"names with values", fill_repeated, "secret=a8Fk3 "},
    {"quotes", fill_repeated, "password=\"'"},
    {"streets", fill_repeated, "1 A st 12345 "},
    {"streets and stops", fill_repeated, "rue de 1 a, "},
    {"PEM begins", fill_repeated, "-----BEGIN PRIVATE KEY-----"},
    {"PEM begins, lines", fill_repeated, "-----BEGIN PRIVATE KEY-----\nMIIE\n"},
    {"tokens begin", fill_repeated, "eyJ.sk-ghp_"},
    {"colons", fill_repeated, ":a:1::"},
    {"births", fill_repeated, "born 1 May 1 "},
    {"telephones", fill_repeated, "tel 12 34 56 78 90 12 34 "},
    {"full width", fill_repeated, "\xef\xbc\x94\xef\xbc\x91\xef\xbc\x91 "},
    {"no width", fill_repeated, "4\xe2\x80\x8b"},
    {"escapes", fill_repeated, "\\u0034\\n%34"},
    {"diagnoses", fill_repeated, "diagnosed with "},
    {"addresses of the web", fill_repeated, "http://a:b@"},
    {"tables", fill_repeated, "phone;pin;born\n12345678;1234;1 May\n"},
    {"heads of tables", fill_repeated, "phone,pin\nphone,pin,born\n"},
    {"commands", fill_repeated, "curl -u a:b mysql -p1 "},
    {"owners", fill_repeated, "password for the "},
    {"tags", fill_repeated, "41<b>"},
    {"at, spelled", fill_repeated, " [at] (dot) &nbsp; "},
    {"debts", fill_repeated, "1 1 1 1 owe "},
};

/* What reading the text costs at least: every byte looked at once. */
static double read_seconds(const char *text, size_t n)
{
    /* Through a pointer that may change, so that the call is made. */
    void *(*volatile read)(const void *, int, size_t) = memchr;
    double best = 1e9;
    for (int k = 0; k < 5; k++) {
        int64_t start = clock_ns();
        const void *found = read(text, '\x01', n);
        double seconds = (double)(clock_ns() - start) * 1e-9;
        if (found == NULL && seconds < best) best = seconds;
    }
    return best;
}

int main(int argc, char **argv)
{
    size_t megabytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 1;
    size_t n = (megabytes ? megabytes : 1) << 20;
    calla_error err = {0};
    detector *d = NULL;
    int64_t start = clock_ns();
    char *text = malloc(n);
    if (!text || detector_create(&d, &err) != CALLA_OK) {
        fprintf(stderr, "%s\n", text ? err.message : "no memory");
        return 1;
    }
    printf("detector made in %.0f ms; texts of %zu MB, best of 2\n",
           (double)(clock_ns() - start) * 1e-6, n >> 20);
    printf("%-22s %10s %10s %12s %10s\n", "text", "ms", "MB/s", "x memchr", "findings");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        texts[i].fill(text, n, texts[i].of);
        double best = 1e9;
        size_t n_findings = 0;
        for (int k = 0; k < 2; k++) {
            finding_list list = {0};
            start = clock_ns();
            if (detect_scan(d, text, n, &list, &err) != CALLA_OK) {
                fprintf(stderr, "%s\n", err.message);
                return 1;
            }
            double seconds = (double)(clock_ns() - start) * 1e-9;
            if (seconds < best) best = seconds;
            n_findings = list.n;
            finding_list_deinit(&list);
        }
        printf("%-22s %10.2f %10.0f %12.0f %10zu\n", texts[i].name, best * 1e3,
               (double)n / best * 1e-6, best / read_seconds(text, n), n_findings);
    }
    /* A request: what the check adds to it. */
    size_t request = 8000;
    fill_repeated(text, request, prose);
    double best = 1e9;
    for (int k = 0; k < 50; k++) {
        finding_list list = {0};
        start = clock_ns();
        if (detect_scan(d, text, request, &list, &err) != CALLA_OK) return 1;
        double seconds = (double)(clock_ns() - start) * 1e-9;
        if (seconds < best) best = seconds;
        finding_list_deinit(&list);
    }
    printf("a request of 2,000 tokens (%zu bytes): %.3f ms\n", request, best * 1e3);
    detector_free(d);
    free(text);
    return 0;
}

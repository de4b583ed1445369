/* National ids: published examples of each kind are found by their names, and no number is taken
 * for the id that one wrong digit or letter makes of it, where check digits can tell. */
#include "support/support.h"

#include "hybrid/detect/detect.h"
#include "hybrid/detect/id_forms.h"
#include "hybrid/detector.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *kind, *name, *id;
    bool checked; /* by a digit or letter of its own */
} examples[] = {
    {"us_ssn", "SSN", "536-90-4399", false},
    {"us_itin", "ITIN", "912-90-3456", false},
    {"uk_nhs", "NHS number", "943 476 5919", true},
    {"uk_nino", "NI number", "AB 12 34 56 C", false},
    {"ie_pps", "PPS number", "1234567T", true},
    {"de_steuer_id", "Steuer-ID", "86095742719", true},
    {"de_svnr", "Versicherung", "15 070649 C 103", true},
    {"de_ausweis", "Personalausweis", "L01X00T471", true},
    {"es_nss", "NSS", "28/12345678/40", true},
    {"it_cie", "Carta d'identita", "CA00000AA", false},
    {"pl_nip", "NIP", "123-456-32-18", true},
    {"pl_dowod", "Dowod", "ABA 300000", true},
    {"at_svnr", "SVNR", "1237 010180", true},
    {"ch_ahv", "AHV", "756.9217.0769.85", true},
    {"fr_nir", "NIR", "2 95 10 99 126 111 93", true},
    {"be_nn", "Rijksregister", "85.07.30-033.28", true},
    {"nl_bsn", "BSN", "111222333", true},
    {"es_dni", "DNI", "54362315K", true},
    {"es_nie", "NIE", "X2482300W", true},
    {"pt_nif", "NIF", "123456789", true},
    {"it_codice_fiscale", "codice fiscale", "RCCMNL83S18D969H", true},
    {"pl_pesel", "PESEL", "44051401359", true},
    {"cz_rc", "rodne cislo", "710319/2745", true},
    {"ro_cnp", "CNP", "1630615123457", true},
    {"bg_egn", "EGN", "7523169263", true},
    {"ru_snils", "SNILS", "112-233-445 95", true},
    {"se_pnr", "personnummer", "811218-9876", true},
    {"fi_hetu", "HETU", "131052-308T", true},
    {"dk_cpr", "CPR", "211062-5629", false},
    {"no_fnr", "fodselsnummer", "15108695088", true},
    {"br_cpf", "CPF", "390.533.447-05", true},
    {"ar_cuil", "CUIL", "20-05536168-2", true},
    {"cl_rut", "RUT", "12.531.909-2", true},
    {"mx_curp", "CURP", "BOXW310820HNERXN09", true},
    {"ca_sin", "SIN", "123-456-782", true},
    {"au_tfn", "TFN", "123 456 782", true},
    {"za_id", "ID number", "7503305044089", true},
    {"tr_tckn", "TCKN", "17291716060", true},
    {"in_aadhaar", "Aadhaar", "2341 2341 2346", true},
    {"in_pan", "PAN", "ACUPA7085R", false},
    {"cn_rid", "ID number", "11010519491231002X", true},
    {"kr_rrn", "ID number", "971013-9019902", true},
    {"jp_my_number", "My Number", "1234 5678 9018", true},
};
enum { N_EXAMPLES = sizeof examples / sizeof *examples };

/* Whether `text` has [at, at + n) as an id of this kind. */
static bool is_found(const detector *d, const char *text, size_t at, size_t n, const char *kind)
{
    finding_list list = {0};
    calla_error err;
    bool found = false;
    assert_int_equal(detect_scan(d, text, strlen(text), &list, &err), CALLA_OK);
    for (size_t i = 0; i < list.n; i++)
        found = found || (list.items[i].category == DETECT_NATIONAL_ID &&
                          strcmp(list.items[i].kind, kind) == 0 && list.items[i].start == at &&
                          list.items[i].end == at + n);
    finding_list_deinit(&list);
    return found;
}

static void test_published_examples(void **state)
{
    for (size_t i = 0; i < N_EXAMPLES; i++) {
        char text[128];
        int at = snprintf(text, sizeof text, "The %s is ", examples[i].name);
        snprintf(text + at, sizeof text - (size_t)at, "%s, as written.", examples[i].id);
        if (!is_found(*state, text, (size_t)at, strlen(examples[i].id), examples[i].kind))
            fail_msg("%s is not found in: %s", examples[i].kind, text);
    }
}

/* Of all single wrong digits check digits let pass one in ten at most (mod 10 schemes none). */
static void test_wrong_digits(void **state)
{
    for (size_t i = 0; i < N_EXAMPLES; i++) {
        if (!examples[i].checked) continue;
        size_t n = strlen(examples[i].id), tried = 0, passed = 0;
        for (size_t k = 0; k < n; k++) {
            if (examples[i].id[k] < '0' || examples[i].id[k] > '9') continue;
            for (char c = '0'; c <= '9'; c++) {
                char text[128];
                int at = snprintf(text, sizeof text, "The %s is ", examples[i].name);
                snprintf(text + at, sizeof text - (size_t)at, "%s, as written.", examples[i].id);
                if (text[(size_t)at + k] == c) continue;
                text[(size_t)at + k] = c;
                tried++;
                passed += is_found(*state, text, (size_t)at, n, examples[i].kind);
            }
        }
        if (passed * 10 > tried)
            fail_msg("%s: %zu of %zu wrong numbers pass", examples[i].kind, passed, tried);
    }
}

/* Every kind of the table has its example. */
static void test_kinds_have_examples(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_id_forms; i++) {
        bool has = false;
        for (size_t k = 0; k < N_EXAMPLES; k++)
            has = has || strcmp(id_forms[i].kind, examples[k].kind) == 0;
        if (!has) fail_msg("no example of %s", id_forms[i].kind);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_examples),
        cmocka_unit_test(test_wrong_digits),
        cmocka_unit_test(test_kinds_have_examples),
    };
    return cmocka_run_group_tests(tests, create_detector, free_detector);
}

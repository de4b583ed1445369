/* What in a text is sensitive, found without a model: values whose form is published and, where
 * they have one, whose check digits are right.
 *
 * A detector is made once and never changes; any number of threads scan with it. A scan is linear
 * in the text, whatever the text is. It sees through other scripts' digits, full-width and
 * look-alike letters, zero-width characters, JSON's and URLs' escapes, and one level of base64;
 * findings are always ranges of bytes of the text as it was given, at the boundaries of its
 * characters. */
#ifndef CALLA_HYBRID_DETECT_H
#define CALLA_HYBRID_DETECT_H

#include "base/strbuf.h"

/* The classes policies speak of, and the categories in them. Values and names are stable: they
 * stand in policies, answers and the audit. */
typedef enum detect_class {
    CLASS_CREDENTIALS,
    CLASS_GOVERNMENT_ID,
    CLASS_HEALTH,
    CLASS_FINANCE,
    CLASS_PERSONAL,
    DETECT_N_CLASSES,
} detect_class;

/* X(identifier, class, name, placeholder). The last three are found by a model's judgement only. */
#define DETECT_CATEGORIES(X)                                                                       \
    X(PRIVATE_KEY, CREDENTIALS, "private_key", "PRIVATE_KEY")                                      \
    X(CERTIFICATE, CREDENTIALS, "certificate", "CERTIFICATE")                                      \
    X(API_KEY, CREDENTIALS, "api_key", "API_KEY")                                                  \
    X(SECRET, CREDENTIALS, "secret", "SECRET")                                                     \
    X(PASSWORD, CREDENTIALS, "password", "PASSWORD")                                               \
    X(NATIONAL_ID, GOVERNMENT_ID, "national_id", "ID")                                             \
    X(PASSPORT, GOVERNMENT_ID, "passport", "PASSPORT")                                             \
    X(DRIVING_LICENCE, GOVERNMENT_ID, "driving_licence", "LICENCE")                                \
    X(MEDICAL, HEALTH, "medical", "MEDICAL")                                                       \
    X(HEALTH_INSURANCE, HEALTH, "health_insurance", "INSURANCE")                                   \
    X(PAYMENT_CARD, FINANCE, "payment_card", "CARD")                                               \
    X(IBAN, FINANCE, "iban", "IBAN")                                                               \
    X(BANK_ACCOUNT, FINANCE, "bank_account", "ACCOUNT")                                            \
    X(FINANCIAL, FINANCE, "financial", "FINANCIAL")                                                \
    X(EMAIL, PERSONAL, "email", "EMAIL")                                                           \
    X(PHONE, PERSONAL, "phone", "PHONE")                                                           \
    X(POSTAL_ADDRESS, PERSONAL, "postal_address", "ADDRESS")                                       \
    X(DATE_OF_BIRTH, PERSONAL, "date_of_birth", "BIRTHDATE")                                       \
    X(IP_ADDRESS, PERSONAL, "ip_address", "IP")                                                    \
    X(MAC_ADDRESS, PERSONAL, "mac_address", "MAC")                                                 \
    X(PERSON_NAME, PERSONAL, "person_name", "PERSON")                                              \
    X(ORGANIZATION, PERSONAL, "organization", "ORGANIZATION")                                      \
    X(OTHER, PERSONAL, "other", "PRIVATE")

typedef enum detect_category {
#define X(identifier, class_, name, placeholder) DETECT_##identifier,
    DETECT_CATEGORIES(X)
#undef X
        DETECT_N_CATEGORIES,
} detect_category;

const char *detect_class_name(detect_class class_);
const char *detect_category_name(detect_category category);
detect_class detect_category_class(detect_category category);
/* What stands in the category's placeholders: capital letters and '_'. */
const char *detect_category_placeholder(detect_category category);
/* The category, or class, of this name; false if there is none. */
bool detect_category_of_name(const char *name, detect_category *category);
bool detect_class_of_name(const char *name, detect_class *class_);

typedef struct finding {
    detect_category category;
    /* Of what kind within its category, a static string: the issuer of a card ("visa"), the id
     * ("us_ssn"), the service of a key ("github"), "private", "documentation" or "public" for
     * addresses of the internet. Never NULL. */
    const char *kind;
    size_t start, end; /* bytes [start, end) of the text */
    float confidence;  /* 0 ... 1: 0.9 and more where a form or check digits leave little doubt */
    bool encoded;      /* it was seen in base64, of which the range is a part */
} finding;

/* Ordered by start; no two overlap. Free with finding_list_deinit. */
typedef struct finding_list {
    finding *items; /* [n] */
    size_t n, capacity;
} finding_list;
void finding_list_deinit(finding_list *list);

typedef struct detector detector;

/* CALLA_ERR_UNSUPPORTED if the pattern matcher does not run on this processor (x86-64 without
 * SSE4.2). Takes some tens of milliseconds. */
calla_status detector_create(detector **d, calla_error *err);
void detector_free(detector *d);

/* Appends what is found in text [n_bytes], any bytes, to `out`. On an error `out` is as it was. */
calla_status detect_scan(const detector *d, const char *text, size_t n_bytes, finding_list *out,
                         calla_error *err);

/* Texts longer than this are refused (CALLA_ERR_INPUT). */
#define DETECT_MAX_BYTES ((size_t)1 << 31)

/* Appends the value of text [n_bytes] such that two ways of writing one value of this category give
 * the same bytes: digits and capital letters of numbers without what separates them, addresses of
 * e-mail in small letters, other texts with their white space evened out. */
void detect_normalise(detect_category category, const char *text, size_t n_bytes, strbuf *out);

/* Appends `text` with all but its ends hidden, for people to recognise: "4***1111",
 * "a***@b***.com". Credentials show nothing but their length. */
void detect_mask(detect_category category, const char *text, size_t n_bytes, strbuf *out);

#endif

/* Names of what detectors find, and values brought to one form. */
#include "hybrid/detect/detect.h"
#include "hybrid/detect/fold.h"
#include "hybrid/detect/scan.h"

#include <string.h>

static const char *const class_names[] = {"credentials", "government_id", "health", "finance",
                                          "personal"};

static const struct {
    const char *name, *placeholder;
    detect_class class_;
} categories[] = {
#define X(identifier, class_, name, placeholder) {name, placeholder, CLASS_##class_},
    DETECT_CATEGORIES(X)
#undef X
};

const char *detect_class_name(detect_class class_)
{
    return class_names[class_];
}

const char *detect_category_name(detect_category category)
{
    return categories[category].name;
}

detect_class detect_category_class(detect_category category)
{
    return categories[category].class_;
}

const char *detect_category_placeholder(detect_category category)
{
    return categories[category].placeholder;
}

bool detect_category_of_name(const char *name, detect_category *category)
{
    for (int i = 0; i < DETECT_N_CATEGORIES; i++)
        if (strcmp(name, categories[i].name) == 0) {
            *category = (detect_category)i;
            return true;
        }
    return false;
}

bool detect_class_of_name(const char *name, detect_class *class_)
{
    for (int i = 0; i < DETECT_N_CLASSES; i++)
        if (strcmp(name, class_names[i]) == 0) {
            *class_ = (detect_class)i;
            return true;
        }
    return false;
}

/* What of a value counts: all of it, or what is left without separators and case. */
typedef enum value_form { FORM_EXACT, FORM_SPACED, FORM_SMALL, FORM_NUMBER } value_form;

static value_form form_of(detect_category category)
{
    switch (category) {
    case DETECT_NATIONAL_ID:
    case DETECT_PASSPORT:
    case DETECT_DRIVING_LICENCE:
    case DETECT_HEALTH_INSURANCE:
    case DETECT_PAYMENT_CARD:
    case DETECT_IBAN:
    case DETECT_BANK_ACCOUNT:
    case DETECT_PHONE:
    case DETECT_MAC_ADDRESS:
        return FORM_NUMBER;
    case DETECT_EMAIL:
    case DETECT_IP_ADDRESS:
        return FORM_SMALL;
    case DETECT_PRIVATE_KEY:
    case DETECT_CERTIFICATE:
    case DETECT_API_KEY:
    case DETECT_SECRET:
    case DETECT_PASSWORD:
        return FORM_EXACT;
    default:
        return FORM_SPACED;
    }
}

static void put_number(const fold *f, strbuf *out)
{
    for (size_t i = 0; i < f->n; i++) {
        char c = f->text[i];
        if (is_alnum(c) || (unsigned char)c >= 0x80 || (c == '+' && out->n == 0))
            strbuf_putc(out, to_upper(c));
    }
}

void detect_normalise(detect_category category, const char *text, size_t n_bytes, strbuf *out)
{
    value_form form = form_of(category);
    fold f;
    if (form == FORM_EXACT || fold_init(&f, text, n_bytes, NULL) != CALLA_OK) {
        strbuf_append(out, text, n_bytes);
        return;
    }
    if (form == FORM_NUMBER) {
        put_number(&f, out);
    } else if (form == FORM_SMALL) {
        for (size_t i = 0; i < f.n; i++)
            if (!is_space(f.text[i]))
                strbuf_putc(out, is_upper(f.text[i]) ? (char)(f.text[i] | 0x20) : f.text[i]);
    } else {
        /* The words as they are, one space between. */
        for (size_t i = 0; i < n_bytes; i++) {
            if (!is_space(text[i]))
                strbuf_putc(out, text[i]);
            else if (i > 0 && !is_space(text[i - 1]))
                strbuf_putc(out, ' ');
        }
    }
    fold_deinit(&f);
}

/* Bytes of the character at `at`, broken ones one each. */
static size_t character_bytes(const char *text, size_t n_bytes, size_t at)
{
    size_t n = 1;
    if ((unsigned char)text[at] >= 0xC0)
        while (n < 4 && at + n < n_bytes && ((unsigned char)text[at + n] & 0xC0) == 0x80) n++;
    return n;
}

void detect_mask(detect_category category, const char *text, size_t n_bytes, strbuf *out)
{
    if (n_bytes == 0) return;
    if (detect_category_class(category) == CLASS_CREDENTIALS) {
        strbuf_printf(out, "***(%zu bytes)", n_bytes);
        return;
    }
    strbuf_append(out, text, character_bytes(text, n_bytes, 0));
    strbuf_puts(out, "***");
    if (category == DETECT_EMAIL) {
        const char *at = memchr(text, '@', n_bytes), *end = text + n_bytes, *dot = end - 1;
        while (dot > text && *dot != '.') dot--;
        if (at && at + 1 < end && dot > at) {
            strbuf_append(out, at, 1 + character_bytes(at + 1, (size_t)(end - at - 1), 0));
            strbuf_puts(out, "***");
            strbuf_append(out, dot, (size_t)(end - dot));
        }
    } else if (n_bytes >= 12 && (unsigned char)text[n_bytes - 1] < 0x80 &&
               (unsigned char)text[n_bytes - 2] < 0x80) {
        strbuf_append(out, text + n_bytes - 2, 2);
    }
}

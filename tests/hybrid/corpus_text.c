/* Values of the corpus that differ by language: e-mail, telephone, address, date; and what must not
 * be found. */
#include "corpus.h"

#include <string.h>

enum { EN, DE, FR, ES, IT, PT, NL, PL };

static unsigned number(corpus_draws *d, unsigned least, unsigned most)
{
    return least + corpus_draw(d, most - least + 1);
}

static void put_digits(corpus_draws *d, int n, strbuf *out)
{
    for (int i = 0; i < n; i++) strbuf_putc(out, (char)('0' + corpus_draw(d, 10)));
}

/* '#' a digit, '+' ... themselves. */
static void put_shape(corpus_draws *d, const char *shape, strbuf *out)
{
    for (; *shape; shape++) {
        if (*shape == '#')
            strbuf_putc(out, (char)('0' + corpus_draw(d, 10)));
        else if (*shape == 'N')
            strbuf_putc(out, (char)('2' + corpus_draw(d, 8)));
        else
            strbuf_putc(out, *shape);
    }
}

void corpus_put_email(corpus_draws *d, int language, strbuf *out)
{
    static const char *const first[] = {"alice",         "jan",          "maria.silva", "p.novak",
                                        "john_smith",    "marie-claire", "lucas",       "info",
                                        "Anna.Kowalska", "t.mueller"};
    static const char *const hosts[] = {
        "example.com", "mail.example.org", "gmail.com", "web.de", "orange.fr",
        "libero.it",   "uol.com.br",       "ziggo.nl",  "wp.pl",  "cs.uni-example.edu"};
    (void)language;
    strbuf_puts(out, CORPUS_PICK(d, first));
    if (corpus_draw(d, 2)) strbuf_printf(out, "%u", number(d, 1, 99));
    if (corpus_draw(d, 8) == 0) strbuf_puts(out, "+shop");
    strbuf_printf(out, "@%s", CORPUS_PICK(d, hosts));
}

void corpus_put_phone(corpus_draws *d, int language, strbuf *out)
{
    static const char *const shapes[CORPUS_LANGUAGES][7] = {
        {"(N1#) N##-####", "+1 N0# N## ####", "+44 7### ######", "020 7### ####", "N1#-N##-####",
         "+1-N1#-N##-####", "07### ######"},
        {"+49 30 ########", "030/########", "0171 #######", "+49 (0)89 ######", "0221 / ######",
         "0049 40 #######", "040-#######"},
        {"06 ## ## ## ##", "+33 6 ## ## ## ##", "01.##.##.##.##", "+33 (0)1 ## ## ## ##",
         "07########", "0033 6 ## ## ## ##", "04 ## ## ## ##"},
        {"+34 6## ### ###", "6## ## ## ##", "91 ### ## ##", "+34 91# ## ## ##", "6## ### ###",
         "6########", "0034 6## ### ###"},
        {"+39 3## ### ####", "3## #######", "06 ########", "+39 02 #######", "3## ### ####",
         "0039 3## #######", "02-#######"},
        {"+55 11 9####-####", "(11) 9####-####", "+351 9## ### ###", "21 9####-####", "9## ### ###",
         "(21) 3###-####", "+55 (21) 9####-####"},
        {"+31 6 ########", "06-########", "020-#######", "+31 (0)20 #######", "06 ## ## ## ##",
         "0031 6 ########", "06########"},
        {"+48 6## ### ###", "6## ### ###", "22 ### ## ##", "+48 22 ### ## ##", "5## ### ###",
         "0048 5## ### ###", "(22) ### ## ##"}};
    put_shape(d, shapes[language][corpus_draw(d, 7)], out);
}

void corpus_put_address(corpus_draws *d, int language, strbuf *out)
{
    unsigned house = number(d, 1, 180);
    static const char *const en[] = {
        "Oak Street", "Maple Avenue", "Elm St",        "Washington Blvd",
        "Cedar Lane", "High Street",  "Victoria Road", "Martin Luther King Drive"};
    static const char *const us[] = {"Springfield, IL 62704", "Austin, TX 78701",
                                     "Portland, OR 97205-1234", "Boston, MA 02108"};
    static const char *const uk[] = {"London SW1A 2AA", "Leeds LS1 4DY", "Manchester M1 1AE",
                                     "Bristol BS1 5TR"};
    static const char *const de[] = {"Hauptstra\xc3\x9f"
                                     "e",
                                     "Bahnhofstr.",
                                     "Karl-Marx-Allee",
                                     "Lindenweg",
                                     "Marktgasse",
                                     "Goethestra\xc3\x9f"
                                     "e",
                                     "Am Stadtpark",
                                     "Rosenplatz"};
    static const char *const de_towns[] = {"10115 Berlin", "80331 M\xc3\xbcnchen",
                                           "50667 K\xc3\xb6ln", "04109 Leipzig", "1010 Wien"};
    static const char *const fr[] = {"rue de la R\xc3\xa9publique", "avenue Victor Hugo",
                                     "boulevard Voltaire",          "rue des Lilas",
                                     "impasse du Moulin",           "place de la Mairie"};
    static const char *const fr_towns[] = {"75011 Paris", "69002 Lyon", "13001 Marseille",
                                           "33000 Bordeaux"};
    static const char *const es[] = {"Calle Mayor",
                                     "Calle de Alcal\xc3\xa1",
                                     "Avenida de la Constituci\xc3\xb3n",
                                     "Paseo de Gracia",
                                     "C/ San Juan",
                                     ("Plaza de Espa\xc3\xb1"
                                      "a")};
    static const char *const es_towns[] = {"28013 Madrid", "08007 Barcelona", "41001 Sevilla",
                                           "46002 Valencia"};
    static const char *const it[] = {"Via Roma", "Via Giuseppe Garibaldi", "Corso Italia",
                                     "Viale Europa", "Piazza Dante"};
    static const char *const it_towns[] = {"00184 Roma (RM)", "20121 Milano", "50122 Firenze (FI)",
                                           "10123 Torino"};
    static const char *const pt[] = {"Rua das Flores", "Avenida Paulista", "Rua Augusta",
                                     "Travessa do Carmo", "Avenida da Liberdade"};
    static const char *const nl[] = {"Kerkstraat", "Dorpsstraat", "Prinsengracht", "Beatrixlaan",
                                     "Stationsplein"};
    static const char *const nl_towns[] = {"1017 GD Amsterdam", "3511 LN Utrecht",
                                           "2511 CV Den Haag", "9711 LM Groningen"};
    static const char *const pl[] = {"ul. Marsza\xc5\x82kowska", "ul. D\xc5\x82uga",
                                     "al. Jerozolimskie",
                                     "ul. Jana Paw\xc5\x82"
                                     "a II",
                                     "pl. Wolno\xc5\x9b"
                                     "ci"};
    static const char *const pl_towns[] = {"00-590 Warszawa", "31-147 Krak\xc3\xb3w",
                                           "80-827 Gda\xc5\x84sk", "61-739 Pozna\xc5\x84"};
    const char *line = corpus_draw(d, 5) ? ", " : "\n";
    switch (language) {
    case EN:
        strbuf_printf(out, "%u %s", house, CORPUS_PICK(d, en));
        if (corpus_draw(d, 4) == 0)
            strbuf_printf(out, ", Apt %u%c", number(d, 1, 30), 'A' + (int)corpus_draw(d, 4));
        strbuf_printf(out, "%s%s", line,
                      corpus_draw(d, 2) ? CORPUS_PICK(d, us) : CORPUS_PICK(d, uk));
        break;
    case DE:
        strbuf_printf(out, "%s %u%s%s%s", CORPUS_PICK(d, de), house, corpus_draw(d, 4) ? "" : "a",
                      line, CORPUS_PICK(d, de_towns));
        break;
    case FR:
        strbuf_printf(out, "%u%s %s%s%s", house, corpus_draw(d, 4) ? "" : " bis,",
                      CORPUS_PICK(d, fr), line, CORPUS_PICK(d, fr_towns));
        break;
    case ES:
        strbuf_printf(out, "%s%s%u%s%s%s", CORPUS_PICK(d, es), corpus_draw(d, 2) ? ", " : " ",
                      house, corpus_draw(d, 3) ? "" : ", 3\xc2\xba B", line,
                      CORPUS_PICK(d, es_towns));
        break;
    case IT:
        strbuf_printf(out, "%s%s%u%s%s", CORPUS_PICK(d, it), corpus_draw(d, 2) ? ", " : " ", house,
                      line, CORPUS_PICK(d, it_towns));
        break;
    case PT:
        strbuf_printf(out, "%s, %u%s", CORPUS_PICK(d, pt), house,
                      corpus_draw(d, 3) ? "" : ", apto 42");
        if (corpus_draw(d, 2))
            strbuf_printf(out, "%s0%u-%03u",
                          corpus_draw(d, 2) ? ", S\xc3\xa3o Paulo - SP, "
                                            : ", Centro, S\xc3\xa3o Paulo - SP, ",
                          number(d, 1000, 5999), number(d, 0, 999));
        else
            strbuf_printf(out, "%s%u-%03u Lisboa", line, number(d, 1000, 1990), number(d, 1, 500));
        break;
    case NL:
        strbuf_printf(out, "%s %u%s%s%s", CORPUS_PICK(d, nl), house, corpus_draw(d, 4) ? "" : "B",
                      line, CORPUS_PICK(d, nl_towns));
        break;
    default:
        strbuf_printf(out, "%s %u%s%s%s", CORPUS_PICK(d, pl), house, corpus_draw(d, 2) ? "" : "/7",
                      line, CORPUS_PICK(d, pl_towns));
    }
}

static void put_date_of(corpus_draws *d, int language, unsigned least, unsigned most, strbuf *out)
{
    static const char *const months[CORPUS_LANGUAGES][12] = {
        {"January", "February", "March", "April", "May", "June", "July", "August", "September",
         "October", "November", "December"},
        {"Januar", "Februar", "M\xc3\xa4rz", "April", "Mai", "Juni", "Juli", "August", "September",
         "Oktober", "November", "Dezember"},
        {"janvier", "f\xc3\xa9vrier", "mars", "avril", "mai", "juin", "juillet", "ao\xc3\xbbt",
         "septembre", "octobre", "novembre",
         "d\xc3\xa9"
         "cembre"},
        {"enero", "febrero", "marzo", "abril", "mayo", "junio", "julio", "agosto", "septiembre",
         "octubre", "noviembre", "diciembre"},
        {"gennaio", "febbraio", "marzo", "aprile", "maggio", "giugno", "luglio", "agosto",
         "settembre", "ottobre", "novembre", "dicembre"},
        {"janeiro", "fevereiro", "mar\xc3\xa7o", "abril", "maio", "junho", "julho", "agosto",
         "setembro", "outubro", "novembro", "dezembro"},
        {"januari", "februari", "maart", "april", "mei", "juni", "juli", "augustus", "september",
         "oktober", "november", "december"},
        {"stycznia", "lutego", "marca", "kwietnia", "maja", "czerwca", "lipca", "sierpnia",
         "wrze\xc5\x9bnia",
         "pa\xc5\xba"
         "dziernika",
         "listopada", "grudnia"}};
    unsigned day = number(d, 1, 28), month = number(d, 1, 12), year = number(d, least, most);
    const char *name = months[language][month - 1];
    switch (corpus_draw(d, 4)) {
    case 0:
        strbuf_printf(out, "%u-%02u-%02u", year, month, day);
        return;
    case 1:
        if (language == EN && corpus_draw(d, 2))
            strbuf_printf(out, "%02u/%02u/%u", month, day, year);
        else
            strbuf_printf(out,
                          language == DE || language == PL ? "%02u.%02u.%u"
                          : language == NL                 ? "%02u-%02u-%u"
                                                           : "%02u/%02u/%u",
                          day, month, year);
        return;
    default:
        break;
    }
    switch (language) {
    case EN:
        strbuf_printf(out, corpus_draw(d, 2) ? "%s %u, %u" : "%s %uth, %u", name,
                      corpus_draw(d, 2) ? day : 4 + day % 7, year);
        return;
    case DE:
        strbuf_printf(out, "%u. %s %u", day, name, year);
        return;
    case ES:
    case PT:
        strbuf_printf(out, "%u de %s de %u", day, name, year);
        return;
    default:
        strbuf_printf(out, "%u %s %u", day, name, year);
    }
}

void corpus_put_date(corpus_draws *d, int language, strbuf *out)
{
    put_date_of(d, language, 1935, 2012, out);
}

/* ---- what must not be found ---- */

static void put_hex(corpus_draws *d, int n, strbuf *out)
{
    for (int i = 0; i < n; i++) strbuf_putc(out, "0123456789abcdef"[corpus_draw(d, 16)]);
}

/* ISBN-13: weights 1 and 3 in turn. */
static void put_isbn(corpus_draws *d, strbuf *out)
{
    char t[14] = "978";
    int sum = 9 + 3 * 7 + 8;
    for (int i = 3; i < 12; i++) {
        t[i] = (char)('0' + corpus_draw(d, 10));
        sum += (t[i] - '0') * (i % 2 ? 3 : 1);
    }
    t[12] = (char)('0' + (10 - sum % 10) % 10);
    if (corpus_draw(d, 2))
        strbuf_printf(out, "%.3s-%.1s-%.4s-%.4s-%.1s", t, t + 3, t + 4, t + 8, t + 12);
    else
        strbuf_append(out, t, 13);
}

/* Sixteen digits that pass Luhn's check but that no issuer begins with. */
static void put_wrong_card(corpus_draws *d, strbuf *out)
{
    char t[17] = "9";
    int sum = 0;
    for (int i = 1; i < 15; i++) t[i] = (char)('0' + corpus_draw(d, 10));
    for (int i = 0; i < 15; i++) {
        int v = (t[i] - '0') * (i % 2 ? 1 : 2);
        sum += v / 10 + v % 10;
    }
    t[15] = (char)('0' + (10 - sum % 10) % 10);
    strbuf_printf(out, "%.4s %.4s %.4s %.4s", t, t + 4, t + 8, t + 12);
}

bool corpus_put_negative(corpus_draws *d, int language, const char *name, strbuf *out)
{
    static const struct {
        const char *name, *shape;
    } shapes[] = {{"order", "########"},
                  {"order10", "N#########"},
                  {"order16", "N###############"},
                  {"tracking", "1Z###AA1##########"},
                  {"part", "AB-####-##"},
                  {"number", "N##"},
                  {"big", "N ### ###"},
                  {"ean", "400##########"},
                  {"case", "2024-######"},
                  {"port", "N###"},
                  {"imei", "35N############"},
                  {"price", "N#.##"}};
    static const char *const words[] = {"Harbour", "Meridian", "Juniper", "Falcon"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(name, shapes[i].name) == 0) return put_shape(d, shapes[i].shape, out), true;
    if (strcmp(name, "sha") == 0) return put_hex(d, 40, out), true;
    if (strcmp(name, "sha256") == 0) return put_hex(d, 64, out), true;
    if (strcmp(name, "md5") == 0) return put_hex(d, 32, out), true;
    if (strcmp(name, "short") == 0) return put_hex(d, 7, out), true;
    if (strcmp(name, "isbn") == 0) return put_isbn(d, out), true;
    if (strcmp(name, "wrongcard") == 0) return put_wrong_card(d, out), true;
    if (strcmp(name, "date") == 0) return put_date_of(d, language, 2015, 2026, out), true;
    if (strcmp(name, "word") == 0) return strbuf_puts(out, CORPUS_PICK(d, words)), true;
    if (strcmp(name, "version") == 0) {
        strbuf_printf(out, "%u.%u.%u", number(d, 0, 20), number(d, 0, 40), number(d, 0, 99));
        if (corpus_draw(d, 2)) strbuf_printf(out, ".%u", number(d, 0, 250));
        return true;
    }
    if (strcmp(name, "unix") == 0) return strbuf_putc(out, '1'), put_digits(d, 9, out), true;
    if (strcmp(name, "time") == 0) {
        strbuf_printf(out, "2025-%02u-%02uT%02u:%02u:%02u.%03uZ", number(d, 1, 12),
                      number(d, 1, 28), number(d, 0, 23), number(d, 0, 59), number(d, 0, 59),
                      number(d, 0, 999));
        return true;
    }
    if (strcmp(name, "uuid") == 0) {
        static const int sizes[] = {8, 4, 4, 4, 12};
        for (int i = 0; i < 5; i++) {
            if (i) strbuf_putc(out, '-');
            put_hex(d, sizes[i], out);
        }
        return true;
    }
    return false;
}

/* Cues of telephones, addresses and births. */
#include "hybrid/detect/cues.h"

const cue_group cue_groups_contact[] = {
    {CUE_PHONE, false,
     "my number|my number is|meine nummer|mon numero|mi numero|mio numero|meu numero|"
     "mijn nummer|moj numer|tel|tel.|tel:|telephone|telephone number|phone|phone number|ph|"
     "mobile|cell|cellphone|cell phone|call|call me at|call me on|call us|fax|whatsapp|sms|"
     "text me|text me at|dial|contact number|reach me at|reach me on|telefon*|telefonnummer|"
     "handy|handynummer|mobil|mobilnummer|mobiltelefon|rufnummer|anrufen|erreichbar|durchwahl|"
     "ruckruf|portable|appelez|appeler|joignable|joindre|numero de tel*|movil|llamar|llame|"
     "llamame|celular|cellulare|cell.|chiamare|chiamami|chiama|recapito|telemovel|ligue|ligar|"
     "contacto|contato|telefone*|telefoonnummer|telefoon*|mobiel|bellen|bel|bereikbaar|gsm|"
     "komorka|komorkowy|zadzwon*|dzwonic|kom.|numer telefonu|电话|手机|電話|携帯|फोन|मोबाइल"},
    {CUE_STREET_LAST, false,
     "street|avenue|road|boulevard|lane|st|ave|rd|blvd|ln|dr|pkwy|parkway|terrace|crescent|"
     "cres|hwy|gardens|grove|mews"},
    {CUE_STREET_LAST, true,
     "drive|court|ct|way|place|pl|square|sq|close|circle|cir|row|hill|walk|highway|trail|loop|"
     "park|green"},
    {CUE_STREET_PART, false,
     "*strasse|*straße|*str|*gasse|*allee|*straat|*laan|*gracht|*singel|*steeg|*dreef|"
     "*chaussee"},
    {CUE_STREET_PART, true,
     "*weg|*platz|*ring|*damm|*ufer|*plein|*kade|*hof|*markt|*pad|*dijk|*berg|*graben|*winkel|"
     "*kamp|*stieg"},
    {CUE_STREET_FIRST, false,
     "rue|avenue|boulevard|impasse|chemin|allee|quai|faubourg|calle|c/|avenida|avda|avda.|"
     "paseo|plaza|viale|piazza|corso|vicolo|piazzale|rua|travessa|praca|alameda|ulica|ul.|"
     "aleja|al.|aleje|osiedle|os.|via|calle de|rua da|laan van"},
    {CUE_STREET_FIRST, true,
     "av|bd|place|route|cours|square|camino|carretera|ronda|travesia|largo|strada|estrada|"
     "plac|pl.|am|im|an der|an den|auf der|auf dem|zum|zur|unter den|in der|beim|hinter der|"
     "lungomare|contrada"},
    {CUE_POSTCODE, false,
     "address|home address|live at|lives at|living at|ship to|shipping address|"
     "mailing address|deliver to|reside at|resides at|moved to|office at|adresse|anschrift|"
     "wohnhaft|wohne in|wohnt in|wohnt|lieferadresse|domicile|habite|adresse postale|reside|"
     "direccion|domicilio|vivo en|vive en|residente|indirizzo|abito in|abita in|residente in|"
     "morada|endereco|moro na|mora na|resido|adres|woon op|woont op|woonadres|"
     "adres zamieszkania|mieszkam przy|mieszka przy|zamieszkaly|zamieszkala|地址|住所"},
    {CUE_BIRTH, false,
     "born|born on|date of birth|birth date|birthdate|birthday|dob|d.o.b.|b.|birth|geboren|"
     "geboren am|geb.|geb|geburtsdatum|geburtstag|nee le|ne le|ne(e) le|naissance|"
     "date de naissance|nacimiento|fecha de nacimiento|nacido|nacida|nacio|cumpleanos|nato|"
     "nata|nato il|nata il|data di nascita|nascita|compleanno|nascimento|data de nascimento|"
     "nascido|nascida|nasceu|aniversario|geboortedatum|geboren op|geboorte|verjaardag|"
     "urodzony|urodzona|ur.|data "
     "urodzenia|urodzin|urodzil|urodzila|生年月日|出生日期|出生|生まれ|जन्म|"
     "date_of_birth|birth_date|dateofbirth|anniversaire|naci|naci "
     "el|nacimos|urodzilem*|urodzilam*|urodziny|jarig|дата рождения|родился|родилась|生日|誕生日"},
    {CUE_CJK_PLACE, false, "*住所*|*住址*|*地址*|*〒*|*주소*"},
    {0},
};

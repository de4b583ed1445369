/* Cues of national ids and documents. */
#include "hybrid/detect/cues.h"

const cue_group cue_groups_ids[] = {
    {CUE_SSN, false,
     "ssn|social security|social security number|soc sec|ss#|social security no|itin|taxpayer"},
    {CUE_STEUER_ID, false,
     "steuer-id*|steuerid*|steueridentifikationsnummer|steuer-identifikationsnummer|"
     "steuerliche identifikationsnummer|idnr|idnr.|steuernummer|tin|identifikationsnummer"},
    {CUE_NIR, false, "nir|securite sociale|numero de securite sociale|n secu|numero de secu|insee"},
    {CUE_DNI, false, "dni|nie|nif|documento nacional|identidad"},
    {CUE_CODICE, false, "codice fiscale|cod. fiscale|c.f.|cf"},
    {CUE_NHS, false, "nhs|nhs number|nhs no"},
    {CUE_NINO, false, "national insurance|nino|ni number|ni no"},
    {CUE_CPF, false, "cpf|cadastro de pessoas*"},
    {CUE_AADHAAR, false, "aadhaar|aadhar|adhaar|uid|uidai|आधार"},
    {CUE_PAN, false, "pan|pan card|pan number|permanent account number|income tax"},
    {CUE_BSN, false, "bsn|burgerservicenummer|sofinummer|burgerservice*"},
    {CUE_PESEL, false, "pesel|numer pesel"},
    {CUE_NIF_PT, false,
     "nif|contribuinte|numero de contribuinte|identificacao fiscal|no contribuinte"},
    {CUE_BE_NN, false, "rijksregister*|registre national|nationalregister*|insz|niss"},
    {CUE_NORDIC, false,
     "personnummer|samordningsnummer|henkilotunnus|hetu|cpr|cpr-nr*|cpr-nummer|fodselsnummer|"
     "personal identity*|svensk|personnr"},
    {CUE_AT_SVNR, false,
     "svnr|sv-nummer|sozialversicherungsnummer|sv-nr|versicherungsnummer|rentenversicherungsnummer|"
     "sozialversicherungs-nr"},
    {CUE_PPS, false, "pps|ppsn|pps number|personal public service*"},
    {CUE_EAST_EU, false, "cnp|egn|rodne cislo|snils|rc|ЕГН|СНИЛС"},
    {CUE_TR_ID, false, "tckn|t.c. kimlik*|kimlik|tc kimlik*"},
    {CUE_SIN, false, "sin|social insurance|social insurance number"},
    {CUE_TFN, false, "tfn|tax file|tax file number"},
    {CUE_CN_ID, false, "身份证|身分证|居民身份证"},
    {CUE_JP_ID, false, "マイナンバー|my number|個人番号|mynumber"},
    {CUE_ID_ANY, false,
     "national id|national identification*|id number|identity number|id no|identity card|"
     "id card|personalausweis*|ausweisnummer|numero d'identite|carte d'identite|"
     "numero de identificacion|documento d'identita|carta d'identita|identificacao|"
     "identiteitsnummer|identiteitskaart|numer identyfikacyjny|dowod|curp|rut|cuil|cuit|"
     "tax id|tax number|tax identification*|taxpayer id*|dowodu|nip|seguridad social|nss|numero de "
     "afiliacion|perso|carta identita"},
    {CUE_PASSPORT, false,
     "passport|passport number|passport no|reisepass*|reisepassnummer|passnummer|pass-nr|"
     "passeport|pasaporte|passaporto|passaporte|paspoort*|paspoortnummer|paszport*|"
     "numer paszportu|护照"},
    {CUE_LICENCE, false,
     "driver's license*|drivers license*|driver license*|driving licence*|driving license*|"
     "driver's licence*|license number|licence number|dl number|fuhrerschein*|"
     "fuhrerscheinnummer|permis de conduire|permiso de conducir|carnet de conducir|"
     "patente di guida|patente|carta de conducao|cnh|rijbewijs*|rijbewijsnummer|prawo jazdy|"
     "prawa jazdy"},
    {0},
};

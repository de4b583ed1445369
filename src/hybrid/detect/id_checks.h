/* Whether a number is one of those ids: its check digits and whatever else its definition bounds.
 * What is checked are its digits and capital letters alone, as many as its form has (id_forms.c).
 */
#ifndef CALLA_HYBRID_ID_CHECKS_H
#define CALLA_HYBRID_ID_CHECKS_H

#include <stdbool.h>

typedef bool id_check(const char *id);

id_check id_is_us_ssn, id_is_us_itin, id_is_uk_nhs, id_is_uk_nino, id_is_ie_pps;
id_check id_is_de_steuer, id_is_de_svnr, id_is_de_ausweis, id_is_at_svnr, id_is_ch_ahv;
id_check id_is_fr_nir, id_is_be_nn, id_is_nl_bsn;
id_check id_is_es_dni, id_is_es_nie, id_is_es_nss, id_is_pt_nif, id_is_it_codice, id_is_it_cie;
id_check id_is_pl_pesel, id_is_pl_nip, id_is_pl_dowod, id_is_cz_rc, id_is_ro_cnp, id_is_bg_egn,
    id_is_ru_snils;
id_check id_is_se_10, id_is_se_12, id_is_fi_hetu, id_is_dk_cpr, id_is_no_fnr;
id_check id_is_br_cpf, id_is_ar_cuil, id_is_cl_rut_7, id_is_cl_rut_8, id_is_mx_curp;
id_check id_is_ca_sin, id_is_au_tfn, id_is_za_id, id_is_tr_tckn;
id_check id_is_in_aadhaar, id_is_in_pan, id_is_cn_rid, id_is_jp_my_number, id_is_kr_rrn;

#endif

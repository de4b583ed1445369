/* Cues of health. */
#include "hybrid/detect/cues.h"

const cue_group cue_groups_health[] = {
    {CUE_MRN, false,
     "numerze pacjenta|patient with id|numerem pacjenta|patient-id|mrn|medical record number|"
     "medical record no|medical record|patient id|patient number|patient no|chart number|"
     "hospital number|patientennummer|patienten-id|patienten-nr|fallnummer|"
     "aktenzeichen der klinik|numero de dossier medical|numero patient|dossier patient|"
     "dossier medical n|historia clinica|numero de historia*|nhc|numero cartella clinica|"
     "cartella clinica|numero do processo clinico|processo clinico|prontuario|"
     "numero do prontuario|patientnummer|dossiernummer|numer pacjenta|numer karty pacjenta|"
     "nr karty pacjenta|patient nr|patient n|patienten nr|paciente n|paziente n|patient #|patient "
     "file"},
    {CUE_INSURANCE, false,
     "insurance number|insurance id|insurance no|member id|policy number|policy no|"
     "group number|medicare|medicaid|subscriber id|health plan id|health card|"
     "versichertennummer|versicherten-nr|krankenversichertennummer|krankenkasse|kvnr|"
     "krankenversicherungsnummer|carte vitale|numero de mutuelle|mutuelle|numero d'adherent|"
     "tarjeta sanitaria|numero de poliza|poliza|seguro medico|tessera sanitaria|"
     "numero polizza|polizza|cartao de saude|numero de utente|apolice|sns|carteirinha|"
     "polisnummer|zorgverzekering|verzekeringsnummer|numer polisy|polisa|nr polisy|ehic|cartao "
     "sus|mutua|ubezpieczenie zdrowotne|zorgpolis"},
    {CUE_ICD, false,
     "icd|icd-10|icd10|icd-10-cm|diagnosis code|icd code|icd-code|code cim*|cim-10|cie-10|"
     "cid-10|kod icd|diagnosecode|diagnoseschlussel|dx|cid|codigo cid"},
    {CUE_DIAGNOSIS, false,
     "diagnosed with|tested positive for|diagnostiziert mit|wurde diagnostiziert|atteint de|"
     "atteinte de|diagnosticado de|diagnosticada de|diagnosticado con|diagnosticada con|"
     "affetto da|affetta da|diagnosticato|diagnosticado com|diagnosticada com|"
     "gediagnosticeerd met|zdiagnozowano|确诊为|diagnosticaron|m'a diagnostique|hanno "
     "diagnosticato|fui diagnosticado|fui diagnosticada|wykryto u mnie"},
    {CUE_DIAGNOSIS, true,
     "lijdt zij aan|lijdt hij aan|lijd aan|leidet er an|leidet sie an|leide an|ist an|she has|"
     "he has|i have|has been having|er hat|sie hat|ich habe|elle a|il a|j'ai|tiene|tengo|"
     "padezco|sufro de|soffro di|sofro de|tenho|ze heeft|zij heeft|hij heeft|ik heb|"
     "cierpie na|choruje|suffers from|suffering from|being treated for|treated for|"
     "in remission from|history of|leidet an|leidet unter|erkrankt an|in behandlung wegen|"
     "behandelt wegen|diagnostique|souffre de|souffre d'|traite pour|traitee pour|padece de|"
     "padece|sufre de|en tratamiento por|soffre di|e in cura per|in cura per|sofre de|"
     "em tratamento para|portador de|portadora de|lijdt aan|behandeld voor|"
     "onder behandeling voor|choruje na|cierpi na|leczony na|leczona na|leczy sie na|患有|"
     "diagnosis|diagnoses|diagnose|diagnosen|befund|diagnostic|diagnostico|diagnosi|"
     "rozpoznanie|diagnoza|diagnóza|诊断|presents with|presented with|suffer from|leide|leide "
     "seit*|leidet seit*"},
    {CUE_ILLNESS, false,
     "*depresi*|*epiless*|*epilept*|*erkrank*|*diabet*|*cukrzyc*|*cancer*|canc|*krebs*|"
     "*tumor*|*tumour*|*tumeur*|*carcinom*|*karzinom*|*kanker*|rak|raka|*leukem*|*leukaem*|"
     "*leucem*|*lymphom*|*linfom*|hiv|aids|vih|*hepatit*|*watrob*|*depress*|*depresj*|"
     "*bipolar*|*schizo*|*asthma*|*asthme*|asma|*astma*|*epilep*|*padaczk*|*sclerosis*|"
     "*sclerose*|*scleros*|*skleros*|*sclerosi*|*esclerosis*|*stwardnien*|*arthrit*|*arthros*|"
     "*artrit*|*artros*|*infect*|*infekt*|*infecc*|*infez*|*disorder*|*storung*|*trouble*|"
     "*trastorno*|*disturbo*|*transtorno*|*stoornis*|*zaburzen*|*syndrom*|*sindrom*|*zespol*|"
     "*disease*|*krankheit*|*maladie*|*enfermedad*|*malattia*|*doenca*|*ziekte*|*chorob*|"
     "*migrain*|*migraen*|*migren*|*emicran*|*enxaqueca*|*anxiety*|*angst*|*anxiet*|"
     "*ansiedad*|*ansia*|lek|*dement*|*demenc*|*demenz*|*alzheimer*|*parkinson*|*stroke*|"
     "*schlaganfall*|*infarct*|*infarkt*|*infarto*|*pneumon*|*lungenentz*|*covid*|*anemi*|"
     "*anaemi*|*allerg*|*alerg*|*autis*|adhd|adhs|ptsd|*addict*|*abhangig*|*dependenc*|"
     "*alcohol*|*alkohol*|*pregnan*|*schwanger*|*enceinte*|*embaraz*|*hypertens*|"
     "*bluthochdruck*|*hipertens*|*ipertens*|*nadcisn*|*insufficien*|*insuffizienz*|"
     "*insuficien*|*niewydoln*|*obesi*|*fettsucht*|*otylosc*|*lupus*|*crohn*|*colitis*|"
     "*kolitis*|*psoria*|*eczema*|*ekzem*|*thyroid*|*schilddrus*|*renal*|*kidney*|*nieren*|"
     "*cardiac*|*herzinsuff*|*rheuma*|*reuma*|*fibromyalg*|*tubercul*|*tuberkul*|*gruzlic*|"
     "*syphilis*|*gonorr*|*herpes*|*chlamyd*|*cirrhos*|*zirrhos*|pain|*schmerz*|*douleur*|"
     "*dolor*|*dolore*|pijn|*fracture*|*fraktur*|*ulcer*|*ulkus*|*thrombos*|*trombos*|*embol*|"
     "*arrhythm*|*fibrillat*|*glaucom*|*glaukom*|*endometrios*|*insomni*|*burnout*|ptbs|"
     "*borderline*|*anorex*|*bulim*|*sepsis*|*melanom*|myom|*gicht*|gout"},
    {CUE_DOSE, false,
     "metformin|lisinopril|atorvastatin|simvastatin|amlodipin|amlodipine|omeprazol|omeprazole|"
     "pantoprazol|ramipril|bisoprolol|metoprolol|levothyroxin|levothyroxine|l-thyroxin|"
     "sertralin|sertraline|fluoxetin|fluoxetine|citalopram|escitalopram|venlafaxin|"
     "venlafaxine|mirtazapin|quetiapin|quetiapine|olanzapin|risperidon|risperidone|lithium|"
     "lithiumcarbonat|diazepam|lorazepam|alprazolam|zolpidem|ibuprofen|ibuprofene|ibuprofeno|"
     "paracetamol|acetaminophen|naproxen|diclofenac|tramadol|morphin|morphine|oxycodone|"
     "oxycodon|fentanyl|amoxicillin|amoxicilline|amoxicilina|amoxicillina|azithromycin|"
     "ciprofloxacin|prednison|prednisone|prednisolon|insulin|insulina|insuline|warfarin|"
     "apixaban|rivaroxaban|clopidogrel|losartan|valsartan|furosemid|furosemide|"
     "hydrochlorothiazide|gabapentin|pregabalin|methotrexat|methotrexate|tamoxifen|truvada|"
     "biktarvy|ritalin|methylphenidat|methylphenidate|adderall|metformina|metformine|"
     "sertralina|atorvastatina|enalapril|candesartan|salbutamol|methadone|buprenorphine|"
     "viagra|sildenafil|*inopril*|*amipril*|*alapril*|*indopril*|*aptopril*|*sartan*|*statin*|*"
     "prazol*|*olol|*cillin*|*cilina|*floxacin*|*azepam|"
     "*oxetin*|*triptan*|*gliptin*|*mycin*|*micina"},
    {CUE_LAB, false,
     "hba1c|blood pressure|heart rate|blood sugar|blood glucose|cholesterol|ldl|creatinine|"
     "cd4 count|viral load|psa|bmi|blutdruck|blutzucker|cholesterin|tension arterielle|"
     "glycemie|presion arterial|glucemia|colesterol|pressione arteriosa|glicemia|colesterolo|"
     "pressao arterial|bloeddruk|bloedsuiker|cisnienie|cisnienie krwi|cukier we krwi|tsh"},
    {0},
};

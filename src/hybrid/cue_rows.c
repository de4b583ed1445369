#include "hybrid/cues.h"

/* The texts of cues, by class; those of languages in the order en de fr es it pt nl pl. */
const cue_row cue_rows[] = {
    {CUE_IBAN, "iban"},         {CUE_CARD, "card"},        {CUE_CARD, "credit card"},
    {CUE_CARD, "visa"},         {CUE_CARD, "mastercard"},  {CUE_CARD, "amex"},
    {CUE_CARD, "kreditkarte*"}, {CUE_CARD, "karte"},       {CUE_CARD, "kartennummer"},
    {CUE_CARD, "carte"},        {CUE_CARD, "tarjeta"},     {CUE_CARD, "carta"},
    {CUE_CARD, "cartao"},       {CUE_CARD, "creditcard*"}, {CUE_CARD, "kaart*"},
    {CUE_CARD, "karta"},        {CUE_CARD, "karty"},       {CUE_CARD, "maestro"},
    {CUE_CARD, "pan"},          {CUE_CARD, "cc"},
};
const size_t n_cue_rows = sizeof cue_rows / sizeof *cue_rows;

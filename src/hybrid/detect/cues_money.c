/* Cues of banks, cards, and what somebody earns and owes. */
#include "hybrid/detect/cues.h"

const cue_group cue_groups_money[] = {
    {CUE_IBAN, false, "iban"},
    {CUE_BIC, false, "bic|swift|swift code|bic/swift"},
    {CUE_ABA, false, "routing|routing number|aba|rtn|routing no|aba number|transit number"},
    {CUE_ACCOUNT, false,
     "account|acct|account number|account no|acct no|acct number|account #|acct #|account num|"
     "bank account|a/c no|checking account|savings account|kontonummer|konto-nr|kontonr|kto.|"
     "kto-nr|numero de compte|compte n|numero de cuenta|cuenta bancaria|cuenta corriente|"
     "cuenta n|numero di conto|conto corrente|conto n|c/c|numero da conta|conta corrente|"
     "conta bancaria|conta n|rekeningnummer|bankrekening|rekening|numer konta|numer rachunku|"
     "nr konta|nr rachunku|rachunek|blz|bankleitzahl|bank code|conta"},
    {CUE_SORT_CODE, false, "sort code|sort-code|sortcode"},
    {CUE_CARD, false,
     "card|credit card|debit card|visa|mastercard|amex|kreditkarte*|karte|kartennummer|carte|"
     "tarjeta|carta|cartao|creditcard*|kaart*|karta|karty|maestro|cc|card_number|cardnumber"},
    {CUE_CVV, false,
     "cvv|cvv2|cvc|cvc2|cid|security code|prufziffer|prufnummer|kartenprufnummer|cryptogramme|"
     "codigo de seguridad|codice di sicurezza|codigo de seguranca|beveiligingscode|kod cvv|"
     "kod cvc"},
    {CUE_SALARY, false,
     "salary|annual salary|base salary|gross income|annual income|net income|net worth|"
     "monthly income|earns|compensation|wage|gehalt*|jahresgehalt|bruttogehalt|nettogehalt|"
     "monatsgehalt|bruttolohn|verdient|einkommen|kontostand|schulden|salaire|revenu annuel|"
     "revenus|gagne|solde du compte|dettes|salario|sueldo|nomina|gana|ingresos|saldo|deudas|"
     "stipendio|retribuzione|guadagna|reddito|ral|debiti|vencimento|ordenado|ganha|rendimento|"
     "dividas|salaris|brutoloon|inkomen|schuld|spaarsaldo|wynagrodzenie|pensja|zarabia|dochod|"
     "saldo konta|zadluzenie|account balance|outstanding debt|mortgage balance|credit limit|"
     "owes|balance of"},
    {CUE_SALARY, true,
     "earn|earning|i make|we "
     "make|owe|mortgage|loan|debt|debts|verdiene|verdienen|hypothek|kredit|darlehen|gagnons|gano|"
     "ganamos|debo|debemos|hipoteca|prestamo|guadagno|guadagniamo|mutuo|prestito|ganho|ganhamos|"
     "devo|emprestimo|verdien|hypotheek|lening|zarabiam|kredyt|pozyczka|credit "
     "immobilier|credit|pret|emprunt"},
    {0},
};

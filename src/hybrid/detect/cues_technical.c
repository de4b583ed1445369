/* Cues of secrets, networks, and numbers that are none of these. */
#include "hybrid/detect/cues.h"

const cue_group cue_groups_technical[] = {
    {CUE_PEM, false, "-----begin *"},
    {CUE_PASSWORD, false,
     "*password*|*passwd*|*passphrase*|pwd|*_pwd|*pass_word|passcode|pass|*_pass|*dbpass|"
     "passwort*|kennwort*|*passwort|zugangscode|mot de passe|mdp|contrasena|clave|"
     "clave de acceso|parola d'ordine|parola chiave|senha|palavra-passe|palavra passe|"
     "wachtwoord*|haslo|hasla|hasło|密码|パスワード|पासवर्ड|requirepass|pw|wlan-schlussel|wlan-"
     "passwort|netzwerkschlussel|wifi key|wi-fi key|wlan key|network key|cle wifi|chiave "
     "wifi|пароль|Пароль|口令"},
    {CUE_PIN, false,
     "pin|pin code|pin-code|pin number|geheimzahl|code pin|codigo pin|codice pin|pincode|"
     "kod pin|pin is|pinnummer|codice pin|numero pin|otp|one-time code|one-time "
     "password|verification code|bestatigungscode|code de verification|codigo de "
     "verificacion|codice di verifica|codigo de verificacao|verificatiecode|kod weryfikacyjny"},
    {CUE_SECRET, false,
     "*secret*|*api_key*|*apikey*|*api-key*|api key|*access_key*|*accesskey*|*access-key*|"
     "access key|*auth_token*|*authtoken*|*auth-token*|auth token|*access_token*|"
     "*accesstoken*|access token|*refresh_token*|*session_token*|token|*_token|*-token|"
     "*private_key*|*privatekey*|private key|*encryption_key*|*encryptionkey*|*signing_key*|"
     "*signingkey*|*master_key*|credential|credentials|connection string|*client_secret*|"
     "*webhook_secret*|*_key|bearer token|security token|authentication key|api-schlussel|"
     "zugangsschlussel|zugriffsschlussel|geheimschlussel|geheimer schlussel|cle api|cle d'api|"
     "cle secrete|cle d'acces|jeton|clave api|clave de api|clave secreta|clave de acceso|"
     "chiave api|chiave segreta|chiave di accesso|chave de api|chave api|chave secreta|"
     "chave de acesso|api-sleutel|geheime sleutel|toegangssleutel|klucz api|klucz dostepu|"
     "tajny klucz|sig=*|密钥|秘钥|apikey|*salt|*_auth"},
    {CUE_URL, false, "*://*"},
    {CUE_AUTHORIZATION, false,
     "bearer|authorization: basic|authorization: token|basic auth|x-api-key:"},
    {CUE_IP, false,
     "ip|ip address|ipv4|ip-address|ip-adresse|adresse ip|direccion ip|indirizzo ip|"
     "endereco ip|ip-adres|adres ip|host|server|client|from|remote_addr|gateway|dns|"
     "nameserver|ssh|ping|login from|source|src|dst|connect*"},
    {CUE_MAC, false,
     "mac|mac address|mac-address|mac-adresse|adresse mac|direccion mac|indirizzo mac|"
     "endereco mac|adres mac|hwaddr|bssid|ether|ethernet|device address"},
    {CUE_VERSION, false,
     "version*|ver|ver.|release|build|v.|firmware|kernel|driver|upgrade*|update to|updated to|"
     "section|chapter|clause|figure|table|kapitel|abschnitt|chapitre|capitulo|capitolo|"
     "hoofdstuk|rozdzial|wersja|wersji|versione|versao|versie|revision|rev|patch|sdk|assembly|"
     "oid|mib|abschn.|sec.|para|item|step|dotnet|package|pkg"},
    {CUE_NUMBER, false,
     "order|order number|order no|order id|order #|invoice|invoice number|invoice no|tracking|"
     "tracking number|reference|ref|ref.|isbn|isbn-13|isbn-10|ean|upc|sku|part number|part no|"
     "serial|serial number|imei|ticket|case number|transaction id|confirmation number|"
     "bestellnummer|bestellung|auftrag*|rechnung|rechnungsnummer|sendungsnummer|artikelnummer|"
     "seriennummer|vorgangsnummer|commande|facture|numero de suivi|numero de commande|pedido|"
     "numero de pedido|factura|seguimiento|ordine|numero ordine|fattura|spedizione|encomenda|"
     "fatura|rastreio|bestelling|bestelnummer|factuur|factuurnummer|trackingcode|zamowienie|"
     "zamowienia|numer zamowienia|faktura|faktury|przesylki|issn|doi|commit|sha|hash|"
     "timestamp|build|version|model"},
    {CUE_COMMAND, false,
     "curl|wget|mysql|mysqldump|mysqladmin|mariadb|sshpass|docker login|podman "
     "login|mongosh|mongo|redis-cli|smbclient|rabbitmqctl|htpasswd"},
    {0},
};

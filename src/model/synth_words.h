/* What the made-up vocabulary is grown from: lists separated by spaces, the frequent first. */
#ifndef CALLA_MODEL_SYNTH_WORDS_H
#define CALLA_MODEL_SYNTH_WORDS_H

extern const char synth_pairs[];    /* pairs of letters, and endings after an apostrophe */
extern const char synth_endings[];  /* endings of English words */
extern const char synth_openings[]; /* beginnings of English words */
extern const char synth_words[];    /* English words */
extern const char synth_marks[];    /* runs of punctuation */
extern const char synth_code[];     /* words of programs */

#endif

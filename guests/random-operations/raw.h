/* Hypercalls with random numbers and arguments. */
#ifndef RAW_H
#define RAW_H
#include "hostile.h"

/* One operation. */
void hypercall_once(void);
#endif

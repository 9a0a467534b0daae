/* Domains that domain 0's random kernel makes and destroys. */
#ifndef CHILDREN_H
#define CHILDREN_H
#include "hostile.h"

/* Domids from 1. */
enum { CHILDREN = 6 };

void children_init(void);
void children_once(void);
/* Pauses those that run, so that CPUs are free. */
void pause_children(void);
void unpause_children(void);
/* Gives back what the vCPU that is here had taken. */
void leave_children(void);
/* Destroys all of them; they must be gone then. */
void end_children(void);
void say_children(void);

/* The kernel of such a domain. */
void child_main(void) __attribute__((noreturn));
#endif

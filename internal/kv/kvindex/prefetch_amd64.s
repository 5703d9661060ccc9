#include "textflag.h"

// func prefetch(lines *[prefetches]uintptr)
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVQ lines+0(FP), SI
	MOVQ $16, CX

next:
	MOVQ       (SI), AX
	PREFETCHT0 (AX)
	ADDQ       $8, SI
	DECQ       CX
	JNZ        next
	RET

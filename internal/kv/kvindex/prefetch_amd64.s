#include "textflag.h"

// func prefetch(lines *[prefetches]uintptr, n int)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVQ lines+0(FP), SI
	MOVQ n+8(FP), CX

next:
	MOVQ       (SI), AX
	PREFETCHT0 (AX)
	ADDQ       $8, SI
	DECQ       CX
	JNZ        next
	RET

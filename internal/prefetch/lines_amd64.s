#include "textflag.h"

// func Lines(addresses *[Most]uintptr, n int)
TEXT ·Lines(SB), NOSPLIT, $0-16
	MOVQ addresses+0(FP), SI
	MOVQ n+8(FP), CX

next:
	MOVQ       (SI), AX
	PREFETCHT0 (AX)
	ADDQ       $8, SI
	DECQ       CX
	JNZ        next
	RET

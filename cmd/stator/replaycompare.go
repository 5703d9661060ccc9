package main

import "context"

func runReplayCompare(ctx context.Context, env environment, args []string) error { return errUsage }

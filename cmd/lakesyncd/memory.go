package main

import (
	"math"
	"runtime/debug"

	"github.com/lakesyncd/lakesyncd/config"
)

// limitMemory tells the Go runtime to collect harder instead of growing beyond
// the configured memory. An eighth is left for what the runtime does not count:
// the program's own pages and the stacks of the kernel. A lower GOMEMLIMIT of
// the environment is kept.
func limitMemory(m config.Size) int64 {
	limit := int64(m) - int64(m)/8
	if have := debug.SetMemoryLimit(-1); have != math.MaxInt64 && have < limit {
		return have
	}
	debug.SetMemoryLimit(limit)
	return limit
}

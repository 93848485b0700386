package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

// Exit codes are those of sysexits(3), which systemd knows by name. Numbers below
// 64 stay free: a Go panic exits with 2, and a supervisor that is told not to
// restart on a configuration error must restart after a crash.
const (
	exitOK          = 0
	exitFailure     = 1  // not classified
	exitUsage       = 64 // EX_USAGE: wrong use of the command line
	exitUnavailable = 69 // EX_UNAVAILABLE: a server, store or address, after the retry budget
	exitTempFail    = 75 // EX_TEMPFAIL: fenced by another instance, or timed out
	exitConfig      = 78 // EX_CONFIG: configuration, or a source that cannot serve us
)

var (
	// errTimeout: what was waited for did not come in time.
	errTimeout = errors.New("timed out")
	// errAddress: the address for HTTP cannot be listened on.
	errAddress = errors.New("address is not available")
	// errConfig marks what only a change of configuration or of the lake mends.
	errConfig = errors.New("configuration")
)

// usageError is a wrong use of the command line.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// classes maps errors to exit codes. The first that fits counts: whoever is
// fenced must not be told to mend a configuration, and a fault that waiting does
// not mend outweighs one that it does.
var classes = []struct {
	code int
	is   []error
}{
	{exitTempFail, []error{checkpoint.ErrFenced, table.ErrFenced, errTimeout}},
	{exitConfig, []error{
		source.ErrCannotServe, fileio.ErrDenied, errConfig, checkpoint.ErrBroken,
		table.ErrForeign, table.ErrRolledBack, table.ErrReplaced, table.ErrUnfit,
	}},
	{exitUnavailable, []error{source.ErrUnavailable, fileio.ErrUnavailable, fileio.ErrUnknown, errAddress}},
	{exitUsage, []error{table.ErrNotFound}},
}

// exitCode turns the error that ended the program into its exit code.
func exitCode(err error) int {
	var usage usageError
	var problems config.Problems
	var problem config.Problem
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return exitOK // stopped as asked
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &problems), errors.As(err, &problem):
		return exitConfig
	}
	for _, c := range classes {
		for _, is := range c.is {
			if errors.Is(err, is) {
				return c.code
			}
		}
	}
	return exitFailure
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/lakesyncd/lakesyncd/checkpoint"
	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
	"github.com/lakesyncd/lakesyncd/table/fileio"
)

func TestExitCodeOfEachErrorClass(t *testing.T) {
	tests := []struct {
		err  error
		want int
	}{
		{nil, 0},
		{context.Canceled, 0},
		{errors.New("anything"), 1},
		{usagef("no such flag"), 64},
		{table.ErrNotFound, 64},
		{source.ErrUnavailable, 69},
		{fileio.ErrUnavailable, 69},
		{fileio.ErrUnknown, 69},
		{errAddress, 69},
		{checkpoint.ErrFenced, 75},
		{table.ErrFenced, 75},
		{errTimeout, 75},
		{config.Problems{{What: "x"}}, 78},
		{config.Problem{What: "x"}, 78},
		{errConfig, 78},
		{source.ErrCannotServe, 78},
		{fileio.ErrDenied, 78},
		{table.ErrForeign, 78},
		{table.ErrRolledBack, 78},
		{table.ErrReplaced, 78},
		{table.ErrUnfit, 78},
		{fmt.Errorf("%w: %w", fileio.ErrUnavailable, source.ErrCannotServe), 78},
		{errors.Join(source.ErrUnavailable, checkpoint.ErrFenced), 75},
	}
	for _, tt := range tests {
		for _, err := range []error{tt.err, wrapped(tt.err)} {
			if got := exitCode(err); got != tt.want {
				t.Errorf("%v: exit code %d, want %d", err, got, tt.want)
			}
		}
	}
}

func wrapped(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("open stream at db:3306: %w", err)
}

func TestExitCodesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []int{exitOK, exitFailure, exitUsage, exitUnavailable, exitTempFail, exitConfig} {
		if !strings.Contains(string(page), fmt.Sprintf("| %d |", code)) {
			t.Errorf("exit code %d is not in docs/reference/exit-codes.md", code)
		}
	}
}

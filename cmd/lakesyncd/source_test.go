package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
)

func TestPartitionColumnsAreNamedWithoutTheirTransforms(t *testing.T) {
	cfg := &config.Config{Tables: []config.Table{{Match: "a.*", PartitionBy: []string{"region", "day(created_at)", " bucket( 16 , id ) ", "truncate(4,name)"}}}}
	if diff := cmp.Diff([]string{"region", "created_at", "id", "name"}, partitionColumns(cfg)("a", "b")); diff != "" {
		t.Error(diff)
	}
	if got := partitionColumns(cfg)("b", "b"); len(got) != 0 {
		t.Errorf("another relation has %v", got)
	}
}

func TestReachedTakesEachKindOfPosition(t *testing.T) {
	for _, tt := range []struct {
		have, want source.Position
		ok, bad    bool
	}{
		{"lsn:1/0", "lsn:0/FFFFFFFF", true, false},
		{"lsn:0/FFFFFFFF", "lsn:1/0", false, false},
		{"gtid:0-1-7", "gtid:0-1-6", true, false},
		{"file:binlog.000002:4", "file:binlog.000010:4", false, false},
		{"gtid:0-1-7", "lsn:1/0", false, true},
		{"lsn:1/0", "lsn:1/0x", false, true},
	} {
		if ok, err := reached(tt.have, tt.want); ok != tt.ok || (err != nil) != tt.bad {
			t.Errorf("reached(%s, %s) is %v, %v", tt.have, tt.want, ok, err)
		}
	}
}

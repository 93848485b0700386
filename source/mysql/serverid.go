package mysql

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/lakesyncd/lakesyncd/source"
)

// serverIDs hands out the ids of the configured range. Two replicas with one id
// throw each other out, so one that somebody else uses is left alone.
type serverIDs struct {
	first, last uint32
	next        uint32
	self        string // how we appear in the server's list
}

func newServerIDs(o *Options) (*serverIDs, error) {
	r := o.Config.ServerID
	if r.First == 0 || r.Last < r.First {
		return nil, fmt.Errorf("%w: server_id: %d-%d is no range of ids from 1 on", source.ErrCannotServe, r.First, r.Last)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	self := "lakesyncd-" + o.Pipeline + "@" + host
	return &serverIDs{first: r.First, last: r.Last, next: r.First, self: self[:min(len(self), 60)]}, nil
}

// pick takes an id that the server does not list for somebody else. It returns
// who has the ids if all are taken; an id is returned then too, since a list may
// hold replicas that are gone.
func (s *serverIDs) pick(ctx context.Context, c *conn) (id uint32, taken string) {
	used := map[uint32]string{}
	r, err := c.first(ctx, "SHOW REPLICAS", "SHOW SLAVE HOSTS")
	if err == nil { // else the right is missing, and the server will tell of a clash
		for i := range r.rows {
			n, err := strconv.ParseUint(r.at(i, "Server_id"), 10, 32)
			if host := r.at(i, "Host"); err == nil && host != s.self {
				used[uint32(n)] = host
			}
		}
	}
	// The server itself is in the range, perhaps.
	if own, err := c.one(ctx, "SELECT @@GLOBAL.server_id"); err == nil {
		if n, err := strconv.ParseUint(own, 10, 32); err == nil {
			used[uint32(n)] = "the server itself"
		}
	}
	for range uint64(s.last-s.first) + 1 {
		id = s.next
		if used[id] == "" {
			return id, ""
		}
		taken = fmt.Sprintf("server_id %d is in use by %s", id, used[id])
		s.skip()
	}
	return s.next, taken
}

// skip goes to the next id of the range.
func (s *serverIDs) skip() {
	if s.next++; s.next > s.last || s.next < s.first {
		s.next = s.first
	}
}

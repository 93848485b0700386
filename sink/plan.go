package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"

	"github.com/lakesyncd/lakesyncd/config"
	"github.com/lakesyncd/lakesyncd/source"
	"github.com/lakesyncd/lakesyncd/table"
)

// PlanTable is what a relation becomes, for `lakesyncd plan` and `check`.
type PlanTable struct {
	Relation      string       `json:"relation"`
	Table         string       `json:"table"`
	Location      string       `json:"location"`
	Exists        bool         `json:"exists"`
	Mode          string       `json:"mode"`
	Rule          string       `json:"rule"` // how an insert is written
	Why           string       `json:"why,omitempty"`
	Key           []string     `json:"key,omitempty"`
	PartitionBy   []string     `json:"partition_by,omitempty"`
	SortBy        []string     `json:"sort_by,omitempty"`
	EstimatedRows int64        `json:"estimated_rows"` // -1: unknown
	Columns       []PlanColumn `json:"columns"`
	Warnings      []string     `json:"warnings,omitempty"`
}

// PlanColumn is what a column becomes.
type PlanColumn struct {
	Name     string `json:"name"`
	Native   string `json:"native"` // declared type at the source
	Type     string `json:"type"`   // in Iceberg
	Required bool   `json:"required"`
	Note     string `json:"note,omitempty"`
}

// Plan tells what Prepare would do with relations that it has not seen, and
// changes nothing. Errors are all problems; a relation with one is left out.
// Tables that exist are checked for fit, not against a saved record.
func (s *Sink) Plan(ctx context.Context, rels []*source.Relation) ([]PlanTable, []error) {
	var (
		plan  []PlanTable
		errs  []error
		taken = map[string]string{}
	)
	for _, rel := range rels {
		r, err := s.route(rel)
		if err == nil && taken[r.table] != "" {
			err = r.wrap(fmt.Errorf("relation %s is written to that table too; give each its own with `tables: [{match: …, table: …}]`", taken[r.table]))
		}
		if err != nil {
			errs = append(errs, split(err)...)
			continue
		}
		taken[r.table] = rel.FullName()
		p := r.plan()
		p.Location, _ = s.catalog.Location(r.table)
		t, err := s.catalog.Load(ctx, r.table)
		switch {
		case err == nil:
			p.Exists = true
			// Its own mark is for the saved record to explain.
			_, marked, _ := t.Mark(s.config.Pipeline)
			if err := s.checkTable(t, r, TableState{Complete: marked}, marked); err != nil {
				errs = append(errs, split(err)...)
				continue
			}
		case !errors.Is(err, table.ErrNotFound):
			errs = append(errs, err)
			continue
		}
		plan = append(plan, p)
	}
	return plan, errs
}

// split takes joined errors apart.
func split(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok && strings.Contains(err.Error(), "\n") {
		var out []error
		for _, e := range j.Unwrap() {
			out = append(out, split(e)...)
		}
		return out
	}
	return []error{err}
}

func (r *route) plan() PlanTable {
	p := PlanTable{
		Relation: r.rel.FullName(), Table: r.table, Mode: r.config.Mode,
		PartitionBy: r.config.PartitionBy, SortBy: r.config.SortBy, EstimatedRows: r.rel.EstimatedRows,
	}
	p.Rule, p.Why = r.rule(TableState{})
	for _, f := range r.schema.Fields() {
		c := PlanColumn{Name: f.Name, Type: f.Type.String(), Required: f.Required}
		if i := slices.IndexFunc(r.rel.Columns, func(o source.Column) bool { return o.Name == f.Name }); i >= 0 {
			c.Native = r.rel.Columns[i].Native
			c.Note = columnNote(r.rel.Columns[i], f, r.config.Misfit == config.MisfitStop)
		} else {
			c.Note = "added by mode append"
		}
		if slices.Contains(r.schema.IdentifierFieldIDs, f.ID) {
			p.Key = append(p.Key, f.Name)
		}
		p.Columns = append(p.Columns, c)
	}
	for _, f := range r.spec.Fields() {
		field, _ := r.schema.FindFieldByID(f.SourceIDs[0])
		switch f.Transform.(type) {
		case iceberg.YearTransform, iceberg.MonthTransform, iceberg.DayTransform, iceberg.HourTransform:
			p.Warnings = append(p.Warnings, fmt.Sprintf("partition %s: DuckDB and ClickHouse prune times before 1970 wrongly, their filtered queries lose such rows; partition by bucket or identity if %s has any", f.Name, field.Name))
		}
		if len(p.Key) > 0 && !slices.Contains(r.schema.IdentifierFieldIDs, field.ID) {
			p.Warnings = append(p.Warnings, fmt.Sprintf("partition %s: %s is not in the key; DuckDB applies a delete of a key to every partition", f.Name, field.Name))
		}
	}
	return p
}

// columnNote says what is odd about a column.
func columnNote(c source.Column, f iceberg.NestedField, stop bool) string {
	misfit := "become NULL and are counted"
	if stop {
		misfit = "stop the pipeline"
	}
	native := strings.ToLower(c.Native)
	switch c.Type.Kind {
	case source.Time:
		if f.Type.Equals(iceberg.PrimitiveTypes.Int64) {
			return "signed microseconds"
		}
		return "values outside of a day stop the pipeline"
	case source.Date, source.Timestamp, source.TimestampTZ:
		return "values that are no date " + misfit
	case source.UUID:
		return "written without bounds, which some readers compare wrongly"
	case source.String:
		if strings.HasPrefix(native, "decimal") || strings.HasPrefix(native, "numeric") {
			return "more digits than a decimal holds: kept as text"
		}
	case source.Decimal:
		if strings.HasPrefix(native, "bigint") || strings.HasPrefix(native, "bit") {
			return "beyond long: kept as decimal"
		}
	}
	return ""
}

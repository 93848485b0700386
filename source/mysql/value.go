package mysql

// columnDef is one column of a table.
type columnDef struct {
	Name string
}

type indexDef struct{}

type foreignDef struct{}

package sink

// TableState is what must be remembered of one table from checkpoint to
// checkpoint; it travels in the checkpoint record.
type TableState struct {
	Relation string `json:"relation"` // namespace.name at the source
	UUID     string `json:"uuid"`     // of the Iceberg table; another one means that it was replaced
	Complete bool   `json:"complete"` // the initial snapshot is in
	// Checkpoint is the number of the newest record that has a delta of the
	// table, 0 for none. Its mark must be in the table.
	Checkpoint int64 `json:"checkpoint,omitempty"`
	// Upsert: nothing proves any more that an inserted key is new, so inserts
	// delete their keys from now on (a truncation was not applied, a position
	// was set by hand).
	Upsert bool `json:"upsert,omitempty"`
}

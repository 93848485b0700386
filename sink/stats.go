package sink

// metricsMode is one of Iceberg's write.metadata.metrics modes.
type metricsMode struct {
	kind  uint8
	width int // of truncate
}

// Package models holds the model folders that come with the program.
//
// The folder sim is the model of simulated engines: a vocabulary of our own making (see test/trainvocabulary)
// and a ChatML template, laid out as Hugging Face lays out a model. There are no weights.
//
// The files are embedded and safe for concurrent use.
package models

import (
	"embed"
	"io/fs"
)

//go:embed sim
var folders embed.FS

// Sim is the folder of the simulated model.
func Sim() fs.FS {
	sim, err := fs.Sub(folders, "sim")
	if err != nil {
		panic(err) // "sim" is a valid path
	}
	return sim
}

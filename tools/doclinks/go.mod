module github.com/quartet-node/quartet/tools/doclinks

go 1.26.0

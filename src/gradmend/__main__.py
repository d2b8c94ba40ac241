from gradmend.cli.main import main

raise SystemExit(main())
